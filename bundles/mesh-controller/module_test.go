package controller

import (
	"slices"
	"testing"
)

func TestTheProgramCarriesItsManifest(t *testing.T) {
	declared := Declared()
	if declared.Module != "mesh-controller" || declared.Version == "" {
		t.Errorf("found module %q, version %q", declared.Module, declared.Version)
	}
	if !slices.Contains(declared.Tools, "status") {
		t.Errorf("status is no tool of %q", declared.Tools)
	}
}
