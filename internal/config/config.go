// Package config finds Ravi's home directory and reads config.json in it.
//
// It may create the home directory and change its mode to 0700, and reads config.json; it writes nothing else. It
// does not know what the blocks for other packages mean: they are kept as they stand (strictjson.Raw) and decoded by
// their owners, tools.sandbox by the public package sandbox.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"ravi/internal/strictjson"
)

// File is the configuration's name in the home directory.
const File = "config.json"

// maxSize bounds config.json; a larger one is no configuration.
const maxSize = 1 << 20

// Config is the content of config.json. A missing file is the zero Config.
type Config struct {
	Tools Tools `json:"tools"`
	// Net is the block network: what the operator decided for every sandbox.
	Net strictjson.Raw `json:"network"`
	// Mod is the block models: which model providers there are, and what runs may have of them.
	Mod strictjson.Raw `json:"models"`
	// Gateway says where the daemon listens besides its socket.
	Gateway Gateway `json:"gateway"`
	// Audit says where the head of the audit is.
	Audit Audit `json:"audit"`
	// Agents is about the agent loop.
	Agents Agents `json:"agents"`
	// Bus is where messages travel, Dispatch how work becomes runs.
	Bus      Bus      `json:"bus"`
	Dispatch Dispatch `json:"dispatch"`

	path string
}

// Tools holds the settings of what agents work with.
type Tools struct {
	Sandbox strictjson.Raw `json:"sandbox"`
	// MCP are the MCP servers.
	MCP strictjson.Raw `json:"mcp_servers"`
	// Exec is how the agent loop runs commands.
	Exec Exec `json:"exec"`
	// RestrictToWorkspace has the agent loop see and write its workspace only.
	RestrictToWorkspace bool `json:"restrict_to_workspace"`
}

// Gateway is the block gateway.
type Gateway struct {
	// Host is an address or a name, empty for 127.0.0.1; elsewhere than on loopback it needs TLS.
	Host string `json:"host"`
	// Port is missing for 7777; 0 is none.
	Port *int `json:"port"`
	// TLSCert and TLSKey are files, as PEM.
	TLSCert string `json:"tls_cert"`
	TLSKey  string `json:"tls_key"`
}

// gatewayPort is where the gateway listens unless told otherwise.
const gatewayPort = 7777

// Address is where to listen; port 0 is nowhere.
func (g Gateway) Address() (host string, port int) {
	host, port = g.Host, gatewayPort
	if host == "" {
		host = "127.0.0.1"
	}
	if g.Port != nil {
		port = *g.Port
	}
	return host, port
}

// Audit is the block audit.
type Audit struct {
	// Head is the file that holds the newest hash of the audit, best on another disk; relative means beneath the home,
	// empty is audit.head there.
	Head string `json:"head"`
}

// HintError is a refusal with the command or edit that mends it.
type HintError struct {
	Message string
	Hint    string
	Err     error
}

func (e *HintError) Error() string { return e.Message }

func (e *HintError) Unwrap() error { return e.Err }

// Home is the directory that holds Ravi's state: RAVI_HOME, or .ravi in the user's home directory. It is made when it
// is missing, and refused when someone else could have written in it.
func Home() (string, error) {
	home, err := Dir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", &HintError{Message: "cannot make Ravi's home directory: " + err.Error(), Hint: "set RAVI_HOME to a directory that you may write", Err: err}
	}
	return home, check(home)
}

// Dir is where Home is, whether it is there or not.
func Dir() (string, error) {
	home := os.Getenv("RAVI_HOME")
	if home == "" {
		dir, err := userHome()
		if err != nil {
			return "", &HintError{Message: "cannot tell where your home directory is: " + err.Error(), Hint: "set RAVI_HOME to an absolute path", Err: err}
		}
		home = filepath.Join(dir, ".ravi")
	}
	if !filepath.IsAbs(home) {
		return "", &HintError{Message: fmt.Sprintf("RAVI_HOME is %q, which is not an absolute path", home), Hint: "set RAVI_HOME to an absolute path"}
	}
	return filepath.Clean(home), nil
}

func userHome() (string, error) {
	if dir := os.Getenv("HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	me, err := user.Current()
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(me.HomeDir) {
		return "", fmt.Errorf("the user %s has no home directory", me.Username)
	}
	return me.HomeDir, nil
}

// check refuses a home that another user owns, could write, or could redirect.
func check(home string) error {
	info, err := os.Lstat(home)
	if err != nil {
		return &HintError{Message: "cannot look at Ravi's home directory: " + err.Error(), Err: err}
	}
	quoted := strconv.Quote(home)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return &HintError{Message: "Ravi's home directory " + quoted + " is a symbolic link", Hint: "set RAVI_HOME to the directory itself"}
	case !info.IsDir():
		return &HintError{Message: "Ravi's home " + quoted + " is not a directory", Hint: "move it away, or set RAVI_HOME to another place"}
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return &HintError{
			Message: fmt.Sprintf("Ravi's home directory %s belongs to user %d, not to you (user %d)", quoted, owner, os.Geteuid()),
			Hint:    "set RAVI_HOME to a directory of your own",
		}
	}
	if info.Mode().Perm()&0o022 != 0 {
		return &HintError{
			Message: fmt.Sprintf("others may write in Ravi's home directory %s (mode %04o)", quoted, info.Mode().Perm()),
			Hint:    "look at what is in it, then: chmod 700 " + quoted,
		}
	}
	if info.Mode().Perm() != 0o700 {
		// Nobody else could write, so what is in it is ours: closing it to readers is safe.
		if err := os.Chmod(home, 0o700); err != nil {
			return &HintError{Message: "cannot close Ravi's home directory to others: " + err.Error(), Hint: "chmod 700 " + quoted, Err: err}
		}
	}
	return nil
}

// Load reads config.json in home.
func Load(home string) (*Config, error) {
	c := &Config{path: filepath.Join(home, File)}
	file, err := os.OpenFile(c.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, &HintError{Message: "cannot read the configuration: " + err.Error(), Err: err}
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, &HintError{Message: "cannot read the configuration: " + err.Error(), Err: err}
	}
	if !info.Mode().IsRegular() {
		return nil, &HintError{Message: "the configuration " + strconv.Quote(c.path) + " is not a file", Hint: "move it away; without it the defaults hold"}
	}
	data, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return nil, &HintError{Message: "cannot read the configuration: " + err.Error(), Err: err}
	}
	if len(data) > maxSize {
		return nil, &HintError{Message: fmt.Sprintf("the configuration %q is larger than %d bytes", c.path, maxSize)}
	}
	return c, c.located(strictjson.Decode(data, c))
}

// Parse reads a configuration that is in no file yet; name is what errors call it.
func Parse(data []byte, name string) (*Config, error) {
	c := &Config{path: name}
	return c, c.located(strictjson.Decode(data, c))
}

// Sandbox decodes the block tools.sandbox into a value that holds the defaults.
func (c *Config) Sandbox(into any) error { return c.located(c.Tools.Sandbox.Decode(into)) }

// MCPServers decodes the block tools.mcp_servers.
func (c *Config) MCPServers(into any) error { return c.located(c.Tools.MCP.Decode(into)) }

// Network decodes the block network.
func (c *Config) Network(into any) error { return c.located(c.Net.Decode(into)) }

// Models decodes the block models.
func (c *Config) Models(into any) error { return c.located(c.Mod.Decode(into)) }

// located names the file, in the form that editors jump to.
func (c *Config) located(err error) error {
	if err == nil {
		return nil
	}
	var e *strictjson.Error
	if !errors.As(err, &e) {
		return &HintError{Message: c.path + ": " + err.Error(), Err: err}
	}
	where := fmt.Sprintf("%s:%d:%d: ", c.path, e.Line, e.Column)
	if e.Path != "" {
		where += e.Path + ": "
	}
	return &HintError{Message: where + e.Message, Hint: "edit " + c.path, Err: err}
}
