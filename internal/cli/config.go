package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/strictjson"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addConfig(t *command.Table) {
	t.AddGroup(command.Group{Name: "config", Summary: "Look at and change config.json"})
	command.Add(t, command.Spec[configShowInput, configShown]{
		Group: "config", Name: "show", Access: command.Read, Reach: command.OperatorOnly,
		Summary: "Show the configuration that holds, defaults filled in",
		Long: `Shows every setting with the value that holds, as JSON. What config.json says is
checked on the way: a mistake is told with its line.`,
		Examples: []command.Example{{Line: "ravi config show"}},
		Handler: func(_ context.Context, env *command.Env, _ configShowInput) (configShown, error) {
			return effectiveConfig(env)
		},
	})
	command.Add(t, command.Spec[configCheckInput, configChecked]{
		Group: "config", Name: "check", Access: command.Read, Reach: command.OperatorOnly,
		Summary:  "Say whether config.json is in order",
		Long:     `Reads config.json as every command does, and says where it is and what is wrong.`,
		Examples: []command.Example{{Line: "ravi config check"}},
		Handler: func(_ context.Context, env *command.Env, _ configCheckInput) (c configChecked, err error) {
			if c.File, err = configFile(env); err != nil {
				return c, err
			}
			_, err = os.Stat(c.File)
			c.Exists = err == nil
			return c, startsDaemon(env)
		},
		Print: func(_ *command.Env, w io.Writer, c configChecked) error {
			state := "is in order"
			if !c.Exists {
				state = "is not there: every default holds"
			}
			_, err := fmt.Fprintln(w, safe.Safe(c.File), state)
			return err
		},
	})
	command.Add(t, command.Spec[configSetInput, configChecked]{
		Group: "config", Name: "set", Access: command.Write, Reach: command.OperatorOnly,
		Summary: "Change a setting in config.json",
		Long: `Sets KEY, written with dots, to VALUE: JSON, or a text that is not. The file is
checked as a whole before it is written; if it would not be in order, nothing is
changed. null removes the setting. Keys are sorted on the way.`,
		Examples: []command.Example{
			{Line: "ravi config set tools.sandbox.memory_mib 4096"},
			{What: "a list", Line: `ravi config set tools.sandbox.allow_net '["pypi.org", "*.npmjs.org"]'`},
			{What: "back to the default", Line: "ravi config set gateway.port null"},
		},
		Handler: setConfig,
		Print: func(env *command.Env, w io.Writer, c configChecked) error {
			if !env.Quiet {
				fmt.Fprintln(w, "changed", safe.Safe(c.File))
			}
			return nil
		},
	})
}

type (
	configShowInput  struct{}
	configCheckInput struct{}
)

type configSetInput struct {
	Key   string `json:"key" arg:"KEY" host:"none" usage:"such as tools.sandbox.memory_mib"`
	Value string `json:"value" arg:"VALUE" host:"secret" usage:"JSON, or a text"`
}

// configShown is the configuration with all defaults.
type configShown struct {
	Tools   configTools   `json:"tools"`
	Network networkBlock  `json:"network"`
	Models  modelsBlock   `json:"models"`
	Gateway configGateway `json:"gateway"`
	Audit   config.Audit  `json:"audit"`
	Agents  config.Agents `json:"agents"`
}

type configTools struct {
	Sandbox    sandbox.Config `json:"sandbox"`
	MCPServers []mcpServer    `json:"mcp_servers"`
	Exec       config.Exec    `json:"exec"`
	Restrict   bool           `json:"restrict_to_workspace"`
}

type configGateway struct {
	Host    string `json:"host"`
	Port    int    `json:"port"`
	TLSCert string `json:"tls_cert"`
	TLSKey  string `json:"tls_key"`
}

type configChecked struct {
	File   string `json:"file"`
	Exists bool   `json:"exists"`
}

func configFile(env *command.Env) (string, error) {
	home, err := env.Home()
	return filepath.Join(home, config.File), err
}

func effectiveConfig(env *command.Env) (configShown, error) {
	file, err := env.Config()
	if err != nil {
		return configShown{}, err
	}
	return readConfig(file)
}

// startsDaemon says what of config.json would keep a daemon from starting, as far as that can be told without starting it.
func startsDaemon(env *command.Env) error {
	home, err := env.Home()
	if err != nil {
		return err
	}
	file, err := env.Config()
	if err != nil {
		return err
	}
	if _, err := readConfig(file); err != nil {
		return err
	}
	return checkBus(home, file)
}

// readConfig reads all blocks of a configuration, as whoever uses them does.
func readConfig(file *config.Config) (out configShown, err error) {
	out.Tools.Sandbox = sandbox.Default()
	if err = file.Sandbox(&out.Tools.Sandbox); err != nil {
		return out, err
	}
	if out.Tools.MCPServers, err = mcpServers(file); err != nil {
		return out, err
	}
	out.Tools.Restrict = file.Tools.RestrictToWorkspace
	if out.Tools.Exec, out.Agents = file.Tools.Exec, file.Agents; out.Tools.Exec.ExtraDenyPatterns == nil {
		out.Tools.Exec.ExtraDenyPatterns = []string{}
	}
	if err = checkDenied(out.Tools.Exec); err != nil {
		return out, err
	}
	if out.Network, err = networkOf(file); err != nil {
		return out, err
	}
	if err = file.Models(&out.Models); err != nil {
		return out, err
	}
	host, port := file.Gateway.Address()
	out.Gateway = configGateway{Host: host, Port: port, TLSCert: file.Gateway.TLSCert, TLSKey: file.Gateway.TLSKey}
	if out.Audit = file.Audit; out.Audit.Head == "" {
		out.Audit.Head = "audit.head"
	}
	return out, nil
}

func setConfig(_ context.Context, env *command.Env, in configSetInput) (c configChecked, err error) {
	if c.File, err = configFile(env); err != nil {
		return c, err
	}
	home, err := env.Home()
	if err != nil {
		return c, err
	}
	if _, err := config.Load(home); err != nil {
		return c, err // what cannot be read is not written anew
	}
	doc := map[string]any{}
	before, err := os.ReadFile(c.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if len(before) > 0 {
		d := json.NewDecoder(bytes.NewReader(before))
		d.UseNumber()
		if err := d.Decode(&doc); err != nil {
			return c, err
		}
	}
	if err := setPath(doc, strings.Split(in.Key, "."), configValue(in.Value)); err != nil {
		return c, err
	}
	after, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return c, err
	}
	file, err := config.Parse(append(after, '\n'), "the changed config.json")
	if err == nil {
		_, err = readConfig(file)
	}
	if err != nil {
		told := command.Usage("nothing was changed: "+err.Error(), "see docs/configuration.md for every key")
		told.Err = err
		return c, told
	}
	c.Exists = true
	return c, replaceFile(c.File, append(after, '\n'))
}

// configValue is a value as it was typed: JSON, or else a text.
func configValue(text string) any {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil || d.More() {
		return text
	}
	return v
}

// setPath sets a key within objects; nil removes it. A key that stands there in its other spelling is the same key.
func setPath(doc map[string]any, path []string, value any) error {
	key := path[0]
	if key == "" {
		return command.Usage("the key is empty, or a part of it is", "write it as tools.sandbox.memory_mib")
	}
	for have := range doc {
		if have != key && strictjson.Snake(have) == strictjson.Snake(key) {
			key = have
			break
		}
	}
	switch {
	case len(path) > 1:
		inner, ok := doc[key].(map[string]any)
		if doc[key] == nil {
			inner, ok = map[string]any{}, true
		}
		if !ok {
			return command.Usage(fmt.Sprintf("%q is no block of settings", key), "see ravi config show")
		}
		doc[key] = inner
		return setPath(inner, path[1:], value)
	case value == nil:
		delete(doc, key)
	default:
		doc[key] = value
	}
	return nil
}

// replaceFile writes a file as a whole, for this user alone.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the rename there is nothing to remove
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
