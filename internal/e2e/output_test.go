package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func allBytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

// What the command writes arrives byte by byte as it was, on both streams.
func TestOutputIsExact(t *testing.T) {
	w, r := newWorld(t), plain(t)
	r.write("all", allBytes())
	r.write("chars", strings.Repeat("漢", 100_000))
	r.commit("bytes")
	res := w.run(r, "-q", "--", "sh", "-c", `
		cat chars & cat chars >&2 & wait
		printf '\346'; sleep 0.1; printf '\274'; sleep 0.1; printf '\242'
		cat all; cat all >&2`).want(0)
	chars := strings.Repeat("漢", 100_000)
	if want := chars + "漢" + allBytes(); res.stdout != want {
		t.Errorf("stdout has %d bytes, want %d", len(res.stdout), len(want))
	}
	if want := chars + allBytes(); res.stderr != want {
		t.Errorf("stderr has %d bytes, want %d", len(res.stderr), len(want))
	}
	if res.file("logs/stdout.log") != res.stdout || res.file("logs/stderr.log") != res.stderr {
		t.Error("the logs have something else")
	}
	if k := res.task(); k.Output.Bytes != int64(len(res.stdout)+len(res.stderr)) || k.Output.Truncated {
		t.Errorf("output %+v", k.Output)
	}
	// In JSON what is no UTF-8 is marked, and no sign appears that was not sent.
	logs := w.ravi("sandbox", "logs", res.task().ID, "--json").want(0)
	if strings.Count(logs.stdout, "漢") != 200_001 || !strings.Contains(logs.stdout, `\ufffd`) && !strings.Contains(logs.stdout, "\uFFFD") {
		t.Errorf("the logs as JSON: %d signs", strings.Count(logs.stdout, "漢"))
	}
}

// Output beyond the bound of a log is not silently lost.
func TestOutputBeyondTheLog(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes 300 MB")
	}
	w, r := newWorld(t), plain(t)
	count := &counter{}
	cmd := w.command("sandbox", "run", "-q", "--repo", r.dir, "--", "sh", "-c", "head -c 300000000 /dev/zero")
	cmd.Stdout = count
	res := w.finish(cmd).want(0)
	if count.n != 300_000_000 {
		t.Errorf("%d bytes came", count.n)
	}
	k := res.task()
	if k.Output.Bytes != 300_000_000 || !k.Output.Truncated {
		t.Errorf("output %+v", k.Output)
	}
	if log := res.file("logs/stdout.log"); len(log) > 260<<20 || !strings.HasSuffix(log, fmt.Sprintf("(%d bytes more are not in this log) ...\n", 300_000_000-256<<20)) {
		t.Errorf("the log has %d bytes and ends with %q", len(log), log[len(log)-100:])
	}
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

// A reader that goes away does not end the run.
func TestClosedPipe(t *testing.T) {
	w, r := newWorld(t), plain(t)
	cmd := w.command("sandbox", "run", "-q", "--repo", r.dir, "--", "sh", "-c", "head -c 3000000 /dev/zero; echo x >>a")
	out, err := cmd.StdoutPipe()
	must(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	must(t, cmd.Start())
	must(t, out.Close())
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
	for dir := range w.runs() {
		res := &result{t: t, dir: dir}
		if k := res.task(); k.Status != "succeeded" || k.Output.Bytes != 3_000_000 || k.Output.Truncated || k.Patch.Files != 1 {
			t.Errorf("task.json says %+v", k)
		}
	}
}

const pem = "-----BEGIN CERTIFICATE-----\nMIIB\n+/=\n-----END CERTIFICATE-----\n"

// Variables arrive exactly as they were given.
func TestEnvironment(t *testing.T) {
	w, r := newWorld(t), plain(t)
	given := map[string]string{
		"CERT": pem, "PAIRS": "a=b=c", "NOTHING": "", "BIG": strings.Repeat("x", 100_000), "LATIN": "\xe4\xff\x01", "WITH.DOT": "dot",
		"BLANKS": "  a\tb  ", "QUOTES": `"'$HOME\`,
	}
	args := []string{"-q"}
	for name, value := range given {
		args = append(args, "--env", name+"="+value)
	}
	w.env = append(w.env, "OUTSIDE=the host's own")
	res := w.run(r, append(args, "--", "env", "-0")...).want(0)
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(res.stdout, "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		got[name] = value
	}
	for name, value := range given {
		if have, ok := got[name]; !ok || have != value {
			t.Errorf("%s arrived as %.60q (%v), given %.60q", name, have, ok, value)
		}
	}
	if _, ok := got["OUTSIDE"]; ok {
		t.Error("a variable of the host's came in")
	}
}

// Credentials do not go in, and no error repeats them.
func TestCredentialsAreRefused(t *testing.T) {
	w, r := newWorld(t), plain(t)
	const secret = "s3cr3tValueThatMustNotAppear"
	for name, c := range map[string]struct{ env, says string }{
		"API key by name":    {"OPENAI_API_KEY=" + secret, "OPENAI_API_KEY"},
		"token by name":      {"GITHUB_TOKEN=" + secret, "GITHUB_TOKEN"},
		"password by name":   {"db_password=" + secret, "db_password"},
		"PGPASSWORD":         {"PGPASSWORD=" + secret, "PGPASSWORD"},
		"AWS":                {"AWS_SECRET_ACCESS_KEY=" + secret, "AWS_SECRET_ACCESS_KEY"},
		"camel case":         {"apiKey=" + secret, "apiKey"},
		"key by value":       {"X=sk-" + secret, "X"},
		"Anthropic by value": {"X=sk-ant-api03-" + secret, "X"},
		"GitHub by value":    {"X=ghp_" + secret, "X"},
		"in a header":        {"X=Authorization: Bearer " + secret, "X"},
		"address":            {"URL=https://maria:" + secret + "@example.org/", "URL"},
		"address, no user":   {"URL=redis://:" + secret + "@example.org/", "URL"},
		"private key":        {"X=-----BEGIN OPENSSH PRIVATE KEY-----\n" + secret, "X"},
		"name missing":       {"=" + secret, "NAME=VALUE"},
		"bad UTF-8 name":     {"A\xff=" + secret, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			res := w.run(r, "--env", c.env, "--", "true").want(2).says(c.says)
			res.silent(secret)
			if res.dir != "" {
				t.Error("a run was made")
			}
			w.run(r, "--json", "--env", c.env, "--", "true").want(2).silent(secret)
		})
	}
	w.run(r, "--env", "GOOD=1", "--env", "GOOD="+secret, "--", "true").want(2).says("GOOD", "twice").silent(secret)
	// Words that only look a little like it are fine.
	w.run(r, "-e", "KEYBOARD=de", "-e", "TOKENIZER=fast", "-e", "PATH_PATTERN=x", "-e", "SECRETARY=Maria", "-e", "URL=https://example.org:8080/a@b", "--", "true").want(0)
}
