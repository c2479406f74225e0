package greet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is this module's own folder, whose files lie as in the bundle.
const module = "../.."

func open(t *testing.T, folder, own string) *Greeter {
	t.Helper()
	greeter, err := Open(folder, own)
	if err != nil {
		t.Fatal(err)
	}
	return greeter
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGreet(t *testing.T) {
	greeter := open(t, module, "")
	for _, test := range []struct{ style, name, expected string }{
		{"", "", "Hello, world!\n"},
		{"", "Ada", "Hello, Ada!\n"},
		{"german", "Ada", "Grüß dich, Ada!\n"},
		{"formal/letter", "Ada {{.Name}}", "Dear Ada {{.Name}}, welcome.\n"},
	} {
		greeting, err := greeter.Greet(test.style, test.name)
		if err != nil || greeting != test.expected {
			t.Errorf("%v: found %q, %v", test, greeting, err)
		}
	}
}

func TestAStyleThatIsNotThere(t *testing.T) {
	greeter := open(t, module, "")
	_, err := greeter.Greet("loud", "")
	expectError(t, err, `style "loud": there is no such style; expected one of formal/letter, german, plain`)
	for _, style := range []string{"../etc/hello", "/etc/passwd", "./plain", "formal/../plain"} {
		if greeting, err := greeter.Greet(style, ""); err == nil {
			t.Errorf("%q: found %q", style, greeting)
		}
	}
}

func TestEveryStyleIsWell(t *testing.T) {
	greeter := open(t, module, "")
	if err := greeter.Check(); err != nil {
		t.Error(err)
	}
	styles, err := greeter.Styles()
	if expected := []string{"formal/letter", "german", "plain"}; err != nil || !slices.Equal(styles, expected) {
		t.Errorf("found %q, %v", styles, err)
	}
}

func TestOwnTemplatesWin(t *testing.T) {
	own := t.TempDir()
	write(t, filepath.Join(own, "plain.tmpl"), "Hey {{.Name}}\n")
	write(t, filepath.Join(own, "short.tmpl"), "{{.Name}}\n")
	greeter := open(t, module, own)
	for style, expected := range map[string]string{"plain": "Hey Ada\n", "short": "Ada\n", "german": "Grüß dich, Ada!\n"} {
		if greeting, err := greeter.Greet(style, "Ada"); err != nil || greeting != expected {
			t.Errorf("%s: found %q, %v", style, greeting, err)
		}
	}
	if styles, err := greeter.Styles(); err != nil || len(styles) != 4 {
		t.Errorf("found %q, %v", styles, err)
	}
}

func TestSettings(t *testing.T) {
	for _, test := range []struct {
		content  string
		expected Settings
		problem  string
	}{
		{"", Settings{"plain", "world"}, ""},
		{`name = "mesh"`, Settings{"plain", "mesh"}, ""},
		{"style = 'german'\nname = 'Ada'", Settings{"german", "Ada"}, ""},
		{`colour = "red"`, Settings{}, "unknown key colour; expected style or name"},
		{`style = 3`, Settings{}, "incompatible types"},
		{`style = `, Settings{}, "expected value"},
	} {
		folder := t.TempDir()
		write(t, filepath.Join(folder, settingsFile), test.content)
		greeter, err := Open(folder, "")
		if test.problem != "" {
			expectError(t, err, test.problem)
		} else if err != nil || greeter.Settings != test.expected {
			t.Errorf("%q: found %+v, %v", test.content, greeter, err)
		}
	}
}

func TestWithoutFilesTheDefaultsHoldAndCheckFails(t *testing.T) {
	greeter := open(t, t.TempDir(), "")
	if expected := (Settings{"plain", "world"}); greeter.Settings != expected {
		t.Errorf("found %+v", greeter.Settings)
	}
	expectError(t, greeter.Check(), `style "plain": there is no such style`)
}

func TestCheckFindsEveryProblem(t *testing.T) {
	own := t.TempDir()
	write(t, filepath.Join(own, "cut.tmpl"), "{{.Name")
	write(t, filepath.Join(own, "wrong.tmpl"), "{{.Surname}}")
	err := open(t, module, own).Check()
	expectError(t, err, "cut:1: unclosed action")
	expectError(t, err, "can't evaluate field Surname")
}

func expectError(t *testing.T, err error, expected string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), expected) {
		t.Errorf("expected %q, found %v", expected, err)
	}
}
