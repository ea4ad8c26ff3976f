package sandbox

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfigJSON(t *testing.T) {
	want := Default()
	five := 5
	want.Backend, want.Image, want.CPUs, want.MemoryMiB, want.DiskSizeGB = BackendGVisor, "host", 1.5, 512, &five
	want.AllowNet = AllowNet{Rules: []string{"pypi.org"}}
	want.Workspace = WorkspaceOverlay
	want.ExtraVolumes = []Volume{{Host: "/a", Guest: "/mnt/a", ReadOnly: true}, {Host: "/b", Guest: "/mnt/b"}}
	want.DefaultTimeout, want.VerifyTimeout, want.CreateTimeout = 0, 1, 2
	want.Debug = Debug{Enabled: true, Socket: "s", MaxMessageBytes: 9}
	for name, text := range map[string]string{
		"snake": `{"backend":"gvisor","image":"host","cpus":1.5,"memory_mib":512,"disk_size_gb":5,"allow_net":["pypi.org"],
			"workspace":"overlay","extra_volumes":[["/a","/mnt/a","ro"],["/b","/mnt/b","rw"]],"default_timeout":0,"verify_timeout":1,
			"create_timeout":2,"debug":{"enabled":true,"socket":"s","max_message_bytes":9}}`,
		"camel": `{"backend":"gvisor","image":"host","cpus":1.5,"memoryMib":512,"diskSizeGb":5,"allowNet":["pypi.org"],
			"workspace":"overlay","extraVolumes":[["/a","/mnt/a","ro"],["/b","/mnt/b","rw"]],"defaultTimeout":0,"verifyTimeout":1,
			"createTimeout":2,"debug":{"enabled":true,"socket":"s","maxMessageBytes":9}}`,
	} {
		var got Config
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var again Config
		if err := json.Unmarshal(b, &again); err != nil {
			t.Errorf("%s: reading back %s: %v", name, b, err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Errorf("%s: written and read back: %s", name, diff)
		}
	}
	var c Config
	if err := json.Unmarshal([]byte(`{}`), &c); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), c); diff != "" {
		t.Errorf("an empty block is not the default: %s", diff)
	}
	if c.Backend != "auto" || c.Image != "host" || c.CPUs != 2 || c.MemoryMiB != 2048 || c.DiskSizeGB != nil || c.AllowNet.All ||
		c.DefaultTimeout != 120 || c.VerifyTimeout != 30 || c.CreateTimeout != 300 || c.Debug.Enabled {
		t.Errorf("the defaults are not those that are documented: %+v", c)
	}
}

func TestConfigRefuses(t *testing.T) {
	for text, says := range map[string]string{
		`{"backend":"vmware"}`:                                           `unknown backend "vmware"`,
		`{"backend":""}`:                                                 "backend",
		`{"image":""}`:                                                   "image",
		`{"cpus":0}`:                                                     "cpus",
		`{"cpus":-1}`:                                                    "cpus",
		`{"cpus":1e9}`:                                                   "cpus",
		`{"cpus":"2"}`:                                                   "cpus",
		`{"memory_mib":0}`:                                               "memory_mib",
		`{"memory_mib":63}`:                                              "memory_mib",
		`{"memory_mib":-5}`:                                              "memory_mib",
		`{"memory_mib":1.5}`:                                             "memory_mib",
		`{"memory_mib":99999999999}`:                                     "memory_mib",
		`{"disk_size_gb":0}`:                                             "disk_size_gb",
		`{"disk_size_gb":-1}`:                                            "disk_size_gb",
		`{"disk_size_gb":99999999}`:                                      "disk_size_gb",
		`{"allow_net":[]}`:                                               "ambiguous",
		`{"allow_net":"yes"}`:                                            "allow_net",
		`{"allow_net":[1]}`:                                              "allow_net",
		`{"workspace":"copy"}`:                                           "workspace",
		`{"default_timeout":-1}`:                                         "default_timeout",
		`{"default_timeout":99999999}`:                                   "default_timeout",
		`{"verify_timeout":0}`:                                           "verify_timeout",
		`{"create_timeout":0}`:                                           "create_timeout",
		`{"debug":{"max_message_bytes":0}}`:                              "max_message_bytes",
		`{"debug":{"unknown":1}}`:                                        "unknown",
		`{"extra_volumes":[["/a","/b"]]}`:                                "'ro'|'rw'",
		`{"extra_volumes":[["/a","/b","rx"]]}`:                           "'ro'|'rw'",
		`{"extra_volumes":["/a:/b"]}`:                                    "'ro'|'rw'",
		`{"extra_volumes":[["a","/b","ro"]]}`:                            "host path must be absolute: a",
		`{"extra_volumes":[["/a","b","ro"]]}`:                            "guest path must be absolute: b",
		`{"extra_volumes":[["","/b","ro"]]}`:                             "absolute",
		`{"extra_volumes":[["/a","/","ro"]]}`:                            "hide",
		`{"extra_volumes":[["/a","/mnt/..","ro"]]}`:                      "hide",
		`{"extra_volumes":[["/a","/workspace","ro"]]}`:                   "/workspace",
		`{"extra_volumes":[["/a","/workspace/sub","ro"]]}`:               "/workspace",
		`{"extra_volumes":[["/a","/mnt/../workspace/","ro"]]}`:           "/workspace",
		`{"extra_volumes":[["/a","/proc/self","ro"]]}`:                   "/proc",
		`{"extra_volumes":[["/a","/dev","ro"]]}`:                         "/dev",
		`{"extra_volumes":[["/a","/etc","ro"]]}`:                         "/etc",
		`{"extra_volumes":[["/a","/usr","ro"]]}`:                         "hide",
		`{"extra_volumes":[["/a","/.ravi/guest","ro"]]}`:                 "/.ravi",
		`{"extra_volumes":[["/a\u0000","/b","ro"]]}`:                     "NUL",
		`{"extra_volumes":[["/a","/mnt/x","ro"],["/b","/mnt/x/","rw"]]}`: "two volumes at /mnt/x",
		`{"memory":5}`:                                                   "memory",
		`{"Memory_MiB":512}`:                                             "Memory_MiB",
		`{"memory_mib":512,"memoryMib":512}`:                             "memory",
		`{"memory_mib":512,"memory_mib":512}`:                            "memory_mib",
		`[]`:                                                             "",
		`{"cpus":1} x`:                                                   "",
	} {
		before := Default()
		before.CPUs = 7
		c := before
		err := json.Unmarshal([]byte(text), &c)
		switch {
		case err == nil:
			t.Errorf("%s is accepted", text)
		case !strings.Contains(err.Error(), says):
			t.Errorf("%s: %v, which does not say %q", text, err, says)
		case !cmp.Equal(c, before):
			t.Errorf("%s: refused, and yet it changed the configuration", text)
		}
	}
}

func TestValidateWhatNoJSONHolds(t *testing.T) {
	zero := 0.0
	for name, change := range map[string]func(*Config){
		"the zero Config": func(c *Config) { *c = Config{} },
		"not a number":    func(c *Config) { c.CPUs = zero / zero },
		"infinite":        func(c *Config) { c.CPUs = 1 / zero },
		"empty rules":     func(c *Config) { c.AllowNet.Rules = []string{} },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%s is valid", name)
		}
	}
	if err := Default().Validate(); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
}
