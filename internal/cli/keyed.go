package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"ravi/internal/config"
	"ravi/internal/connected"
	"ravi/internal/daemon"
)

// asKeyHolder asks the gateway, which is what a holder of a key can do.
func asKeyHolder(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := connected.Program{Getenv: os.Getenv, Stdin: stdin, Stdout: stdout, Stderr: stderr, Version: Version(), Socket: gatewayPath()}
	return p.Run(context.Background(), args)
}

// gatewayPath is where the gateway's socket would be. Nothing is made there: whoever holds a key may not even see the
// place.
func gatewayPath() string {
	dir, err := config.Dir()
	if err != nil {
		return filepath.Join("/", "no-home", daemon.Socket)
	}
	return filepath.Join(dir, daemon.Socket)
}
