package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"reflect"
	"sync"
	"time"

	"ravi/internal/command"
	"ravi/internal/guard"
)

// Entry is a command in the registry.
type Entry struct {
	Name     string         `json:"name"` // tasks.comment
	Group    string         `json:"group"`
	Command  string         `json:"command"`
	Aliases  []string       `json:"aliases"`
	Summary  string         `json:"summary"`
	Long     string         `json:"long"`
	Examples []EntryExample `json:"examples"`
	Access   command.Access `json:"access"`
	Fields   []EntryField   `json:"fields"`
}

// EntryExample is a line to type, and what for.
type EntryExample struct {
	What string `json:"what"`
	Line string `json:"line"`
}

// EntryField is an input of a command: a flag or an argument.
type EntryField struct {
	Name     string       `json:"name"` // the key in JSON
	Type     string       `json:"type"` // string, boolean, integer, number, duration, strings, map
	Arg      string       `json:"arg"`
	Optional bool         `json:"optional"`
	Rest     bool         `json:"rest"` // it takes all arguments that follow
	Flag     string       `json:"flag"`
	Short    string       `json:"short"`
	Value    string       `json:"value"`
	Usage    string       `json:"usage"`
	Host     command.Host `json:"host"` // which resource of the host it names
}

// Registry is what can be called.
type Registry struct {
	Version  string  `json:"version"`
	Hash     string  `json:"registry_hash"` // of the whole table, whoever asks
	Commands []Entry `json:"commands"`
}

// index is the table as the server needs it.
type index struct {
	once    sync.Once
	byName  map[string]*command.Command
	entries []Entry // as the table has them
	all     []*command.Command
	hash    string
}

func (x *index) build(s *Server) {
	x.once.Do(func() {
		x.byName = map[string]*command.Command{}
		for _, c := range s.Table.Commands() {
			if c.Reach == command.LocalOnly {
				continue
			}
			x.byName[c.Group+"/"+c.Name] = c
			x.all, x.entries = append(x.all, c), append(x.entries, entryOf(c))
		}
		b, err := json.Marshal(x.entries)
		if err != nil {
			panic(err) // it is made of strings
		}
		sum := sha256.Sum256(b)
		x.hash = hex.EncodeToString(sum[:8])
	})
}

func (x *index) find(group, name string) *command.Command { return x.byName[group+"/"+name] }

func entryOf(c *command.Command) Entry {
	e := Entry{
		Name: c.FullName(), Group: c.Group, Command: c.Name, Aliases: append([]string{}, c.Aliases...), Summary: c.Summary, Long: c.Long,
		Examples: []EntryExample{}, Access: c.Access, Fields: []EntryField{},
	}
	for _, x := range c.Examples {
		e.Examples = append(e.Examples, EntryExample(x))
	}
	for i := range c.Fields {
		f := &c.Fields[i]
		e.Fields = append(e.Fields, EntryField{
			Name: f.JSON, Type: TypeOf(f.Type), Arg: f.Arg, Optional: f.Optional, Rest: f.Rest(), Flag: f.Flag, Short: f.Short,
			Value: f.Holder, Usage: f.Usage, Host: f.Host,
		})
	}
	return e
}

// TypeOf is what the registry calls a type of an input.
func TypeOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[time.Duration]() {
		return "duration"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64:
		if !reflect.PointerTo(t).Implements(reflect.TypeFor[interface{ UnmarshalText([]byte) error }]()) {
			return "integer"
		}
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "strings"
	case reflect.Map:
		return "map"
	}
	return "string"
}

// Registry is what a caller may call.
func (s *Server) registry(who caller) Registry {
	r := Registry{Version: "1", Hash: s.index.hash, Commands: []Entry{}}
	env := &command.Env{Caller: who.Caller}
	for i, c := range s.index.all {
		if c.May(env) {
			r.Commands = append(r.Commands, s.index.entries[i])
		}
	}
	return r
}

func (s *Server) meta(w http.ResponseWriter, r *http.Request, who caller, name string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		guard.WriteError(w, http.StatusMethodNotAllowed, command.CodeUsage, "this is read with GET", "")
		return
	}
	var doc any
	switch name {
	case "version":
		doc = map[string]string{"version": s.Version, "registry_hash": s.index.hash}
	case "registry":
		doc = s.registry(who)
	case "openapi.json":
		doc = s.openAPI(who)
	default:
		guard.WriteError(w, http.StatusNotFound, command.CodeNotFound, "there is nothing here", "version, registry and openapi.json are")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(doc) // whoever asked has gone away
}
