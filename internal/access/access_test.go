package access

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseCapability(t *testing.T) {
	for text, want := range map[string]string{
		"read:tasks": "read:tasks", "write:tasks.comment@tsk01": "write:tasks.comment@tsk01", "read:*": "read:*", "read:tasks.*": "read:tasks",
		"read:tasks@*": "read:tasks", "read:*@run1": "read:*@run1", "read:tasks@tsk*": "read:tasks@tsk*", "write:memory.write@agt1": "write:memory.write@agt1",
	} {
		c, err := ParseCapability(text)
		if err != nil || c.String() != want {
			t.Errorf("%s: got %s, %v", text, c, err)
		}
	}
	for _, text := range []string{
		"", "tasks", "admin:tasks", "read:", "read:*.list", "read:ta*", "read:tasks.li*", "read:Tasks", "read:tasks.", "read:tasks@a b", "read:tasks@a*b", "READ:tasks",
		"read:tasks@**", "read:tasks@", "read:*@", "write:tasks.comment@", "read: tasks", "read:tasks\n", "read:tasks@\x00", "read:" + strings.Repeat("a", 300), "read:tasks@é", "write:*.*",
	} {
		if c, err := ParseCapability(text); err == nil {
			t.Errorf("%q passed as %s", text, c)
		}
	}
}

func TestAllow(t *testing.T) {
	holds, err := ParseCapabilities([]string{"read:sessions@ses1", "write:tasks.comment@tsk1", "read:runs", "read:memory@agt*"})
	if err != nil {
		t.Fatal(err)
	}
	for ask, want := range map[Ask]bool{
		{Read, "sessions", "transcript", "ses1"}:  true,
		{Read, "sessions", "transcript", "ses2"}:  false,
		{Read, "sessions", "transcript", "ses11"}: false,
		{Read, "sessions", "transcript", ""}:      false, // all of them
		{Write, "sessions", "transcript", "ses1"}: false,
		{Write, "tasks", "comment", "tsk1"}:       true,
		{Read, "tasks", "comment", "tsk1"}:        false,
		{Write, "tasks", "done", "tsk1"}:          false,
		{Read, "runs", "show", "run9"}:            true,
		{Read, "runs", "ls", ""}:                  true,
		{Read, "memory", "show", "agt7"}:          true,
		{Read, "memory", "show", "ses1"}:          false,
		{Read, "secrets", "ls", ""}:               false,
	} {
		if got := holds.Allow(ask); got != want {
			t.Errorf("%+v: %v", ask, got)
		}
		err := WithKey(Key{ID: "ctx_1", Capabilities: holds}).Check(ask)
		if (err == nil) != want || err != nil && (!errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), ask.Capability().String())) {
			t.Errorf("%+v: %v", ask, err)
		}
		if err := AsOperator().Check(ask); err != nil {
			t.Errorf("the operator: %v", err)
		}
		if err := (Caller{}).Check(ask); err == nil {
			t.Error("nobody may do something")
		}
	}
	c := WithKey(Key{ID: "ctx_1", Capabilities: holds})
	if all, some := c.Objects(Ask{Access: Read, Group: "sessions", Command: "ls"}); all || !slices.Equal(some, []string{"ses1"}) {
		t.Errorf("sessions: %v %v", all, some)
	}
	if all, _ := c.Objects(Ask{Access: Read, Group: "runs", Command: "ls"}); !all {
		t.Error("not all runs")
	}
	if c.Somewhere(Ask{Access: Read, Group: "secrets", Command: "ls"}) == nil || c.Somewhere(Ask{Access: Read, Group: "sessions", Command: "ls"}) != nil {
		t.Error("somewhere")
	}
	if Matches([]string{"agt*"}, "ses1") || !Matches([]string{"ses1", "agt*"}, "agt2") {
		t.Error("matches")
	}
	// A key makes a caller no operator, whatever else is said.
	if odd := (Caller{operator: true, Key: &Key{}}); odd.IsOperator() {
		t.Error("a holder of a key is the operator")
	}
}

func capability() *rapid.Generator[Capability] {
	return rapid.Custom(func(t *rapid.T) Capability {
		return Capability{
			Access:  rapid.SampledFrom([]Access{Read, Write}).Draw(t, "access"),
			Group:   rapid.SampledFrom([]string{"", "tasks", "runs"}).Draw(t, "group"),
			Command: rapid.SampledFrom([]string{"", "ls", "show"}).Draw(t, "command"),
			Object:  rapid.SampledFrom([]string{"", "a", "ab", "a*", "ab*", "b"}).Draw(t, "object"),
		}
	})
}

// What covers allows at least as much; what parses is what was written.
func TestCoversIsAnOrder(t *testing.T) {
	asks := func(t *rapid.T) Ask {
		return Ask{
			rapid.SampledFrom([]Access{Read, Write}).Draw(t, "access"), rapid.SampledFrom([]string{"tasks", "runs"}).Draw(t, "group"),
			rapid.SampledFrom([]string{"ls", "show"}).Draw(t, "command"), rapid.SampledFrom([]string{"", "a", "ab", "abc", "b"}).Draw(t, "object"),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b, ask := capability().Draw(t, "a"), capability().Draw(t, "b"), asks(t)
		if a.Covers(b) && (Capabilities{b}).Allow(ask) && !(Capabilities{a}).Allow(ask) {
			t.Fatalf("%s covers %s, which allows %+v alone", a, b, ask)
		}
		if !a.Covers(a) {
			t.Fatalf("%s does not cover itself", a)
		}
		if a.Group == "" {
			a.Command = ""
		}
		again, err := ParseCapability(a.String())
		if err != nil || again != a {
			t.Fatalf("%s: %+v, %v", a, again, err)
		}
		list := rapid.SliceOf(capability()).Draw(t, "list")
		var texts []string
		for _, c := range list {
			if c.Group == "" {
				c.Command = ""
			}
			texts = append(texts, c.String())
		}
		short, err := ParseCapabilities(texts)
		if err != nil {
			t.Fatal(err)
		}
		var long Capabilities
		for _, text := range texts {
			c, _ := ParseCapability(text)
			long = append(long, c)
		}
		if short.Allow(ask) != long.Allow(ask) {
			t.Fatalf("%v was cut to %v, which says otherwise of %+v", long.Strings(), short.Strings(), ask)
		}
	})
}

func FuzzParseCapability(f *testing.F) {
	f.Add("read:tasks.comment@tsk*")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCapability(text)
		if err != nil {
			return
		}
		if again, err := ParseCapability(c.String()); err != nil || again != c {
			t.Errorf("%q: %+v became %+v, %v", text, c, again, err)
		}
	})
}

func TestProfile(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"ours/app", "ours2", "theirs/app", "data/in"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "theirs/app"), filepath.Join(dir, "ours/link")); err != nil {
		t.Fatal(err)
	}
	p := Profile{
		Backends: []string{"gvisor"}, Images: []string{"host"}, Repos: []string{filepath.Join(dir, "ours"), "https://git.example.com/acme/"},
		Volumes: []string{filepath.Join(dir, "data") + ":ro"}, Secrets: []string{"DEV"}, Networks: []string{"pypi.org"},
		Programs: []string{"claude"}, Models: []string{"anthropic/claude-*", "*/*", "mine/meta-llama/llama-3.3:free"},
		CPUs: 1, MemoryMiB: 512, DiskGB: 2, Timeout: 60, Sandboxes: 2,
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	good := Wish{Backend: "gvisor", Image: "host", CPUs: 1, MemoryMiB: 512, DiskGB: 2, Timeout: time.Minute, Networks: []string{"none"}, Sandboxes: 1}
	at := func(path string) string { return filepath.Join(dir, path) }
	for name, c := range map[string]struct {
		change func(*Wish)
		denied string
	}{
		"as allowed":      {func(*Wish) {}, ""},
		"host":            {func(w *Wish) { w.Backend = "host" }, "the backend host"},
		"none":            {func(w *Wish) { w.Backend = "none" }, "the backend none"},
		"auto":            {func(w *Wish) { w.Backend = "auto" }, "the backend auto"},
		"image":           {func(w *Wish) { w.Image = "evil:latest" }, "the image evil"},
		"repo":            {func(w *Wish) { w.Repo = at("ours/app") }, ""},
		"repo root":       {func(w *Wish) { w.Repo = at("ours") }, ""},
		"repo beside":     {func(w *Wish) { w.Repo = at("ours2") }, "the repository"},
		"repo up":         {func(w *Wish) { w.Repo = at("ours") + "/../theirs/app" }, "the repository"},
		"repo link":       {func(w *Wish) { w.Repo = at("ours/link") }, "the repository"},
		"repo /":          {func(w *Wish) { w.Repo = "/" }, "the repository"},
		"repo relative":   {func(w *Wish) { w.Repo = "." }, "the repository"},
		"repo missing":    {func(w *Wish) { w.Repo = at("ours/none") }, "the repository"},
		"address":         {func(w *Wish) { w.Repo = "https://git.example.com/acme/app" }, ""},
		"address beside":  {func(w *Wish) { w.Repo = "https://git.example.com/acme2/app" }, "the repository"},
		"address up":      {func(w *Wish) { w.Repo = "https://git.example.com/acme/../other/app" }, "the repository"},
		"address user":    {func(w *Wish) { w.Repo = "https://git.example.com/acme/@evil.example.com/app" }, "the repository"},
		"address encoded": {func(w *Wish) { w.Repo = "https://git.example.com/acme/%2e%2e/other" }, "the repository"},
		"file address":    {func(w *Wish) { w.Repo = "file://" + at("theirs/app") }, "the repository"},
		"volume":          {func(w *Wish) { w.Volumes = []Volume{{at("data/in"), true}} }, ""},
		"volume rw":       {func(w *Wish) { w.Volumes = []Volume{{at("data/in"), false}} }, "the volume"},
		"volume else":     {func(w *Wish) { w.Volumes = []Volume{{at("data"), true}, {at("ours"), true}} }, "the volume"},
		"secret":          {func(w *Wish) { w.Secrets = []string{"DEV"} }, ""},
		"other secret":    {func(w *Wish) { w.Secrets = []string{"DEV", "PROD"} }, "the secret PROD"},
		"network":         {func(w *Wish) { w.Networks = []string{"pypi.org"} }, ""},
		"other network":   {func(w *Wish) { w.Networks = []string{"pypi.org", "evil.example.com"} }, "the network evil"},
		"all":             {func(w *Wish) { w.Networks = []string{"all"} }, "the network all"},
		"program":         {func(w *Wish) { w.Program = "claude" }, ""},
		"other program":   {func(w *Wish) { w.Program = "codex" }, "the agent program codex"},
		"cpus":            {func(w *Wish) { w.CPUs = 1.5 }, "1.5 processors"},
		"memory":          {func(w *Wish) { w.MemoryMiB = 513 }, "513 MiB"},
		"disk":            {func(w *Wish) { w.DiskGB = 3 }, "3 GB"},
		"time":            {func(w *Wish) { w.Timeout = time.Minute + 1 }, "a time of"},
		"no bound":        {func(w *Wish) { w.Timeout = 0 }, "a time of"},
		"negative time":   {func(w *Wish) { w.Timeout = -1 }, "a time of"},
		"third sandbox":   {func(w *Wish) { w.Sandboxes = 2 }, "one more sandbox"},
	} {
		w := good
		c.change(&w)
		got, err := p.Check("acme", w)
		if c.denied == "" && err != nil || c.denied != "" && (!errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), c.denied)) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := (Profile{}).Check("zero", w); err == nil {
			t.Errorf("%s: the zero profile allows it", name)
		}
		if err == nil && w.Repo != "" && got.Repo == "" {
			t.Errorf("%s: the repository is gone", name)
		}
	}
	// What was checked is what must be used: the link's target, not the link.
	if err := os.Symlink(filepath.Join(dir, "ours/app"), filepath.Join(dir, "ours/inner")); err != nil {
		t.Fatal(err)
	}
	w := good
	w.Repo = at("ours/inner")
	if got, err := p.Check("acme", w); err != nil || got.Repo != at("ours/app") {
		t.Errorf("got %q, %v", got.Repo, err)
	}
	for _, bad := range []Profile{{Repos: []string{"src"}}, {Repos: []string{"/a/../b"}}, {Repos: []string{"https://x.example"}}, {Volumes: []string{"/a"}}, {Volumes: []string{"a:ro"}}, {CPUs: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
	if err := DefaultProfile().Validate(); err != nil {
		t.Error(err)
	}
}
