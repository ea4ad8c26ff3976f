package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ravi/internal/modeltest"
)

// With tools.restrict_to_workspace the loop and its sub-agents see and write their workspace only: no volume, and on the host
// none of the user's files. What they do in there is a proven patch.
func TestLoopRestricted(t *testing.T) {
	const outside = "what-lies-outside-4711"
	for _, backend := range []string{"gvisor", "host"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			c := loops[0]
			w := newWorld(t)
			// Not below /tmp, which on the host is the sandbox's own.
			volume, err := os.MkdirTemp("/var/tmp", "volume")
			must(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(volume) })
			must(t, os.WriteFile(filepath.Join(volume, "secret"), []byte(outside), 0o644))
			guest := "/data"
			if backend == "host" {
				guest = volume // where it is
			}
			settings, err := json.Marshal(map[string]any{"tools": map[string]any{
				"restrict_to_workspace": true, "sandbox": map[string]any{"backend": backend, "extra_volumes": [][]string{{volume, guest, "rw"}}},
			}})
			must(t, err)
			must(t, os.Mkdir(w.home, 0o700))
			must(t, os.WriteFile(filepath.Join(w.home, "config.json"), settings, 0o600))
			reach := "cat /data/secret " + volume + "/secret; touch /data/made " + volume + "/made /opt/made /usr/made; sudo -n touch /data/made /opt/made; cat /etc/passwd >seen.txt; ls / /data"
			url, model := providerOf(t, c.header, modeltest.Script{
				Turns: []modeltest.Turn{
					{modeltest.Call("exec", object{"command": reach})},
					{modeltest.Call("read", object{"path": volume + "/secret"}), modeltest.Call("read", object{"path": "/data/secret"}), modeltest.Call("exec", object{"command": "pwd", "working_dir": "/"})},
					{modeltest.Call("spawn", object{"task": "Look outside", "label": "looker"})},
					{modeltest.Text("I wait for it.")},
				},
				Then: []modeltest.Script{{Turns: []modeltest.Turn{
					{modeltest.Call("exec", object{"command": "echo /etc 2>/dev/null >made.txt; rm -f seen.txt"})},
					{modeltest.Call("finish", object{"summary": "It is done."})},
				}}},
				Others: map[string]modeltest.Script{"You are a sub-agent": {Turns: []modeltest.Turn{
					{modeltest.Call("exec", object{"command": reach})},
					{modeltest.Call("finish", object{"summary": "looked"})},
				}}},
			})
			w.env = []string{c.key + "=" + canary, c.base + "=" + url}
			repo := plain(t)
			run := w.run(repo, c.args("look around", "--max-tokens", "1000000")...).want(0)
			if p := run.file("changes.patch"); !strings.Contains(p, "+/etc") || strings.Contains(p, "seen.txt") {
				t.Errorf("the patch:\n%s", short(p))
			}
			refused := false
			for _, r := range model.Requests() {
				if r.Has(outside) {
					t.Error("it has what lies outside")
				}
				refused = refused || r.Has("outside of the workspace")
			}
			if !refused {
				t.Error("a working_dir outside is taken")
			}
			if left, err := os.ReadDir(volume); err != nil || len(left) != 1 {
				t.Errorf("in the volume are %v, %v", left, err)
			}
			if task := run.file("task.json"); !strings.Contains(task, "volumes of config.json are not shown") {
				t.Errorf("it is not told that the volume is left out:\n%s", short(task))
			}
			w.run(repo, c.args("look", "--volume", volume+":/more")...).want(2).says("restrict_to_workspace")
		})
	}
}
