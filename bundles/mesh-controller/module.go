// Package controller is the module's own declaration, as the program carries it.
package controller

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

//go:embed manifest.json
var manifest []byte

// Declaration is the part of manifest.json that the program itself needs.
type Declaration struct {
	Module  string   `json:"module"`
	Version string   `json:"version"`
	Tools   []string `json:"tools"`
}

// Declared returns what the manifest says, which is checked before the program is built.
func Declared() Declaration {
	var d Declaration
	if err := json.Unmarshal(manifest, &d); err != nil {
		panic(fmt.Sprintf("the embedded manifest.json: %v", err))
	}
	return d
}
