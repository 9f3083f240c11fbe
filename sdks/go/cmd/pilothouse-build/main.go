// Command pilothouse-build builds the plugin of the module in a folder: build/NAME.wasm, where NAME is the end of the module's
// path.
//
//	go run pilothouse.dev/pilothouse-go/cmd/pilothouse-build [-o FILE] [FOLDER]
//
// It calls Go's compiler, and appends the types of the contract to what that writes. The host makes a component of it.
package main

import (
	_ "embed"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// The types of the contract, as `wasm-tools component embed` would encode them.
//
//go:embed component-type.bin
var componentType []byte

func main() {
	output := flag.String("o", "", "the file to write, instead of build/NAME.wasm")
	flag.Parse()
	folder := "."
	if flag.NArg() > 0 {
		folder = flag.Arg(0)
	}
	if err := build(folder, *output); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func build(folder, output string) error {
	list := exec.Command("go", "list", "-m")
	list.Dir, list.Stderr = folder, os.Stderr
	module, err := list.Output()
	if err != nil {
		return fmt.Errorf("%s is not in a Go module: %w", folder, err)
	}
	path := strings.TrimSpace(string(module))
	name := path[strings.LastIndex(path, "/")+1:]
	if !regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`).MatchString(name) {
		return fmt.Errorf("the module's path must end in lower-case letters, digits and `-`, and not in %q", name)
	}
	if output == "" {
		output = filepath.Join(folder, "build", name+".wasm")
	}
	// Go runs in the folder of the module.
	if output, err = filepath.Abs(output); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o777); err != nil {
		return err
	}
	fmt.Printf("building %s\n", output)
	made := filepath.Join(filepath.Dir(output), fmt.Sprintf(".%s.%d", filepath.Base(output), os.Getpid()))
	defer os.Remove(made)
	// The runtime of Go gives the memory that WASI asks for before the runtime starts: hence the flag.
	compile := exec.Command("go", "build", "-buildmode=c-shared", "-ldflags=-checklinkname=0", "-o", made, ".")
	compile.Dir, compile.Stdout, compile.Stderr = folder, os.Stdout, os.Stderr
	compile.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if err := compile.Run(); err != nil {
		return fmt.Errorf("Go's compiler fails: its message is above: %w", err)
	}
	if err := embed(made); err != nil {
		return err
	}
	// Renamed into place, so that a host that watches the folder never loads half a file.
	if err := os.Rename(made, output); err != nil {
		return err
	}
	info, err := os.Stat(output)
	if err != nil {
		return err
	}
	fmt.Printf("built %s: %.1f MB\n", output, float64(info.Size())/1e6)
	return nil
}

// embed appends a custom section with the types of the contract.
func embed(file string) error {
	const name = "component-type:pilothouse"
	section := binary.AppendUvarint(nil, uint64(len(name)))
	section = append(append(section, name...), componentType...)
	content := binary.AppendUvarint([]byte{0}, uint64(len(section)))
	opened, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := opened.Write(append(content, section...)); err != nil {
		opened.Close()
		return err
	}
	return opened.Close()
}
