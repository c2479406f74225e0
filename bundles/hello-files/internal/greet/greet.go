// Package greet makes greetings from the templates and the settings that lie beside a program.
package greet

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/BurntSushi/toml"
)

const (
	settingsFile    = "etc/hello.toml"
	templatesFolder = "share"
	templateSuffix  = ".tmpl"
)

//go:embed defaults.toml
var defaults string

// Settings are the keys of etc/hello.toml.
type Settings struct {
	Style string `toml:"style"`
	Name  string `toml:"name"`
}

// Greeter greets in the styles of its folders.
type Greeter struct {
	Settings Settings
	folders  []fs.FS
}

// Beside returns the folder of the program that runs, in which its files lie.
func Beside() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	path, err = filepath.EvalSymlinks(path)
	return filepath.Dir(path), err
}

// Open reads the settings below folder, or the defaults where there are none. Templates in the folder own win over
// those below folder; own may be empty.
func Open(folder, own string) (*Greeter, error) {
	greeter := &Greeter{}
	if err := decode(defaults, &greeter.Settings); err != nil {
		return nil, fmt.Errorf("defaults.toml: %w", err)
	}
	path := filepath.Join(folder, settingsFile)
	content, err := os.ReadFile(path)
	if err == nil {
		err = decode(string(content), &greeter.Settings)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the settings of %s: %w", path, err)
	}
	if own != "" {
		greeter.folders = append(greeter.folders, os.DirFS(own))
	}
	greeter.folders = append(greeter.folders, os.DirFS(filepath.Join(folder, templatesFolder)))
	return greeter, nil
}

// decode overwrites the settings that a text has; a key that nobody reads is an error.
func decode(text string, settings *Settings) error {
	found, err := toml.Decode(text, settings)
	if err != nil {
		return err
	}
	if unknown := found.Undecoded(); len(unknown) > 0 {
		return fmt.Errorf("unknown key %s; expected style or name", unknown[0])
	}
	return nil
}

// Greet returns a greeting. An empty style or name is that of the settings.
func (g *Greeter) Greet(style, name string) (string, error) {
	if style == "" {
		style = g.Settings.Style
	}
	if name == "" {
		name = g.Settings.Name
	}
	text, err := g.template(style)
	if err != nil {
		return "", fmt.Errorf("style %q: %w", style, err)
	}
	parsed, err := template.New(style).Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var greeting strings.Builder
	if err := parsed.Execute(&greeting, struct{ Name string }{name}); err != nil {
		return "", err
	}
	return greeting.String(), nil
}

func (g *Greeter) template(style string) (string, error) {
	for _, folder := range g.folders {
		content, err := fs.ReadFile(folder, style+templateSuffix) // refuses a path that leads out
		if !errors.Is(err, fs.ErrNotExist) {
			return string(content), err
		}
	}
	styles, err := g.Styles()
	if err != nil {
		return "", err
	}
	return "", fmt.Errorf("there is no such style; expected one of %s", strings.Join(styles, ", "))
}

// Styles lists the names of all templates in order; one in a folder is named `folder/name`.
func (g *Greeter) Styles() ([]string, error) {
	styles := []string{}
	for _, folder := range g.folders {
		err := fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
			if style, ok := strings.CutSuffix(path, templateSuffix); ok && err == nil && !entry.IsDir() {
				styles = append(styles, style)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	slices.Sort(styles)
	return slices.Compact(styles), nil
}

// Check returns everything that keeps the program from greeting: each template that fails, and settings that name none.
func (g *Greeter) Check() error {
	styles, err := g.Styles()
	if err != nil {
		return err
	}
	if !slices.Contains(styles, g.Settings.Style) {
		styles = append(styles, g.Settings.Style)
	}
	problems := []error{}
	for _, style := range styles {
		if _, err := g.Greet(style, ""); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
