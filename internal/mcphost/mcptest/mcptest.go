// Package mcptest has the MCP servers of others that tests try, from npm, at the versions that they were tried with.
//
// It asks npm for them, and touches nothing but a folder of its own. It must not be used but by tests.
package mcptest

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"sync"
)

// The servers.
const (
	Everything = "@modelcontextprotocol/server-everything"
	Filesystem = "@modelcontextprotocol/server-filesystem"
	version    = "2026.8.31"
)

// Dir is where a sandbox is to see the folder of the servers.
const Dir = "/opt/mcp"

// Program is the main file of a server in such a sandbox, for node.
func Program(server string) string { return path.Join(Dir, "node_modules", server, "dist/index.js") }

var (
	made    string
	install = sync.OnceValue(func() (err error) {
		if made, err = os.MkdirTemp("", "ravi-mcp-"); err != nil {
			return err
		}
		if err := os.Chmod(made, 0o755); err != nil {
			return err
		}
		out, err := exec.Command("npm", "install", "--prefix", made, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
			Everything+"@"+version, Filesystem+"@"+version).CombinedOutput()
		if err != nil {
			return fmt.Errorf("npm install: %w: %s", err, out)
		}
		return nil
	})
)

// Missing is the program that is not on this machine, without which there are no servers; empty: none.
func Missing() string {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return program
		}
	}
	return ""
}

// Install installs the servers on this side, once, and says where. They are there until Remove.
func Install() (dir string, err error) {
	err = install()
	return made, err
}

// Remove removes what was installed.
func Remove() {
	if made != "" {
		os.RemoveAll(made)
	}
}
