// Command ravi runs AI agents in disposable sandboxes.
//
// The programs that a sandbox is made of are inside it; see package programs.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"ravi/internal/cli"
	"ravi/internal/programs"
)

// The folder holds the other programs once `make build` has built them.
//
//go:embed all:embedded
var embedded embed.FS

func main() {
	sub, err := fs.Sub(embedded, "embedded")
	if err != nil {
		fmt.Fprintln(os.Stderr, "ravi:", err)
		os.Exit(125)
	}
	programs.Register(sub)
	if filepath.Base(os.Args[0]) == programs.ListName && len(os.Args) == 2 {
		os.Exit(list(os.Args[1]))
	}
	os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// list tells a program that uses Ravi as a library where Ravi's parts are.
func list(home string) int {
	set, err := programs.Find(context.Background(), home)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(set)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ravi:", err)
		return 1
	}
	return 0
}
