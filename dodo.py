# The build tasks of this repository's modules: `doit list --all` shows them.
from meshbuild.tasks import *  # noqa: F403
