package secret

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ravi/internal/strictjson"
)

// Store is the secrets in one home directory. Many processes use it side by side; it is safe for concurrent use.
type Store struct {
	home   string
	now    func() time.Time
	client *http.Client
	// patience is how long a command may take.
	patience time.Duration
	rename   func(from, to string) error
}

// Open gives the store in a home directory, which must be there. Nothing is made before the first secret is set.
func Open(home string) (*Store, error) {
	if !filepath.IsAbs(home) {
		return nil, fmt.Errorf("the home directory %q is not an absolute path", home)
	}
	return &Store{home: home, now: time.Now, client: newClient(), patience: commandTime, rename: os.Rename}, nil
}

// Change is what Set changes. What is not given stays as it was, and has its default in a new secret.
type Change struct {
	Hosts, Headers, Env []string
	Query               *string // the empty text takes it away
	Source              *Source
}

// Set makes a secret, or changes one. A new one needs hosts and a source.
func (s *Store) Set(ctx context.Context, name string, c Change) (Secret, error) {
	var out Secret
	err := s.change(ctx, func(doc *document) error {
		if err := CheckName(name); err != nil {
			return err
		}
		at := slices.IndexFunc(doc.Secrets, func(r record) bool { return strings.EqualFold(r.Name, name) })
		now := s.now().UTC().Truncate(time.Second)
		r := record{Name: name, CreatedAt: now}
		if at >= 0 {
			r = doc.Secrets[at]
			if r.Name != name {
				return refuse(ErrName, "give it another name, or change that one: ravi secrets set "+r.Name,
					"there is a secret %s already, whose name differs in case only", r.Name)
			}
		} else if c.Source == nil {
			return refuse(ErrSource, "", "there is no secret %s yet, and no value is given for it", name)
		}
		r.UpdatedAt = now
		if err := r.apply(c); err != nil {
			return err
		}
		if at >= 0 {
			doc.Secrets[at] = r
		} else {
			doc.Secrets = append(doc.Secrets, r)
			slices.SortFunc(doc.Secrets, byName)
		}
		out = r.secret()
		return nil
	})
	if err != nil {
		return Secret{}, err
	}
	return out, nil
}

func byName(a, b record) int {
	return strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name))
}

// apply changes a record, and holds the outcome to the rules.
func (r *record) apply(c Change) error {
	if c.Hosts != nil {
		r.Hosts = c.Hosts
	}
	if c.Headers != nil {
		r.Headers = c.Headers
	}
	if c.Env != nil {
		r.Env = c.Env
	}
	if c.Query != nil {
		r.Query = *c.Query
	}
	if c.Source != nil {
		kind, err := c.Source.kind()
		if err != nil {
			return err
		}
		old := r.App
		r.Value, r.Argv, r.App = "", nil, nil
		switch kind {
		case Stored:
			r.Value = c.Source.Value.Reveal()
		case Command:
			r.Argv = slices.Clone(c.Source.Argv)
		case GitHub:
			if r.App, err = c.Source.App.record(old); err != nil {
				return err
			}
		}
	}
	return r.check()
}

// Get is one secret, without its value.
func (s *Store) Get(_ context.Context, name string) (Secret, error) {
	r, err := s.find(name)
	if err != nil {
		return Secret{}, err
	}
	return r.secret(), nil
}

func (s *Store) find(name string) (record, error) {
	doc, err := s.load()
	if err != nil {
		return record{}, err
	}
	for _, r := range doc.Secrets {
		if r.Name == name {
			return r, nil
		}
	}
	return record{}, notFound(doc, name)
}

func notFound(doc document, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	names := make([]string, len(doc.Secrets))
	for i, r := range doc.Secrets {
		names[i] = r.Name
	}
	hint := "see ravi secrets ls"
	if near := strictjson.Nearest(name, names); near != "" {
		hint = "did you mean " + near + "?"
	} else if len(names) == 0 {
		hint = "there are none yet; make one: ravi secrets set NAME --host HOST"
	}
	return refuse(ErrNotFound, hint, "there is no secret %s", name)
}

// List is all secrets by name, without their values.
func (s *Store) List(context.Context) ([]Secret, error) {
	doc, err := s.load()
	if err != nil {
		return nil, err
	}
	out := make([]Secret, len(doc.Secrets))
	for i, r := range doc.Secrets {
		out[i] = r.secret()
	}
	return out, nil
}

// Known gives every value that lies in the store, by the name of its secret, for whoever takes them out of what is
// shown: stored values, and the private keys of apps. What a command or an app gives is known to its lease only.
func (s *Store) Known(context.Context) (map[string]Value, error) {
	doc, err := s.load()
	if err != nil {
		return nil, err
	}
	out := map[string]Value{}
	for _, r := range doc.Secrets {
		switch {
		case r.App != nil:
			out[r.Name] = NewValue(r.App.PrivateKey)
		case r.Value != "":
			out[r.Name] = NewValue(r.Value)
		}
	}
	return out, nil
}

// Remove removes secrets: all that are named, or, when one of them is not there, none.
func (s *Store) Remove(ctx context.Context, names ...string) error {
	return s.change(ctx, func(doc *document) error {
		gone := map[string]bool{}
		for _, name := range names {
			if !slices.ContainsFunc(doc.Secrets, func(r record) bool { return r.Name == name }) {
				return notFound(*doc, name)
			}
			gone[name] = true
		}
		doc.Secrets = slices.DeleteFunc(doc.Secrets, func(r record) bool { return gone[r.Name] })
		return nil
	})
}

// change reads the store, changes it and writes it, while nobody else does.
func (s *Store) change(ctx context.Context, f func(*document) error) error {
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	doc, err := s.load()
	if err != nil {
		return err
	}
	if err := f(&doc); err != nil {
		return err
	}
	return s.save(doc)
}

// record is what is stored of an app: what is given, and the rest as it was before.
func (a *AppSource) record(old *appRecord) (*appRecord, error) {
	out := appRecord{App: App{APIURL: DefaultAPI, Permissions: map[string]string{"contents": "read"}}}
	if old != nil {
		out = *old
	}
	if a.ID != 0 {
		if old != nil && a.ID != old.ID && a.PrivateKey.IsZero() {
			return nil, refuse(ErrSource, "give its private key as well", "this is another GitHub App than before, and it has another key")
		}
		out.ID = a.ID
	}
	if !a.PrivateKey.IsZero() {
		out.PrivateKey = a.PrivateKey.Reveal()
	}
	if a.Installation != nil {
		out.Installation = *a.Installation
	}
	if a.APIURL != "" {
		out.APIURL = a.APIURL
	}
	if a.Permissions != nil {
		out.Permissions = maps.Clone(a.Permissions)
	}
	if a.AllRepositories != nil {
		out.AllRepositories = *a.AllRepositories
	}
	return &out, nil
}
