package main

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"mesh.example/controller/internal/inputs"
	"mesh.example/controller/internal/state"
)

// prepare runs once before a new release's serve, while the older release still lives on the same state.
func prepare(p program, args []string) error {
	if err := parse(flag.NewFlagSet("prepare", flag.ContinueOnError), args); err != nil {
		return err
	}
	var problems []string
	for _, problem := range inputs.Check(p.getenv).Problems() {
		problems = append(problems, problem.String())
	}
	folder := state.Folder(p.getenv)
	if folder != "" {
		if err := state.Check(folder); err != nil {
			problems = append(problems, err.Error())
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("prepare: %d problems, nothing written:\n  %s", len(problems), strings.Join(problems, "\n  "))
	}
	created, err := state.Prepare(folder, p.declared.Module+" "+p.declared.Version, time.Now())
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	done := "kept"
	if created {
		done = "created"
	}
	_, err = fmt.Fprintf(p.stdout, "prepared: %s %s\n", done, filepath.Join(folder, state.FileName))
	return err
}
