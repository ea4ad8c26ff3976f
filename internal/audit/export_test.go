package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"ravi/internal/store"
)

// exported is an audit with what is hard to write in it, exported.
func exported(t *testing.T) (Log, string) {
	t.Helper()
	l, _ := newLog(t)
	for i, text := range []string{"", "a", `"\/<>&` + "\u2028\u2029", "äöü\U0001F600", "\x01\x1f\x7f\n\t", strings.Repeat("z", 5000), "\xff\x00"} {
		detail, err := json.Marshal(map[string]any{"a": text, "n": 1.50, "<": []any{nil, true}})
		if err != nil {
			t.Fatal(err)
		}
		for _, caller := range []string{"", "ctx_" + text} {
			r := Record{Time: time.UnixMilli(1_700_000_000_000 + int64(i)*37).UTC(), Caller: caller, Action: "a." + text, Object: text, Decision: store.Allowed, RunID: text, SandboxID: text, Rule: text, Reason: text, Count: int64(1 + i)}
			if i%2 == 1 {
				r.Detail = detail
			}
			if err := l.Append(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	var b strings.Builder
	n, err := l.Export(t.Context(), &b, Filter{})
	if err != nil || n != 14 || strings.Count(b.String(), "\n") != 14 {
		t.Fatalf("%d rows, %v", n, err)
	}
	return l, b.String()
}

func TestExport(t *testing.T) {
	l, text := exported(t)
	h := head(t, l)
	report, err := VerifyExport(strings.NewReader(text), &h)
	if err != nil || report.Rows != 14 || report.Last.Hash != h.Hash || report.Gaps != 0 {
		t.Errorf("%+v, %v", report, err)
	}
	lines := strings.SplitAfter(text, "\n")
	for want, bad := range map[string]string{
		"rows 14 to 14 are missing at the end":                   strings.Join(lines[:13], ""),
		"row 3 is missing":                                       strings.Join(slices.Concat(lines[:2], lines[3:]), ""),
		"row 2 comes after row 2":                                strings.Join(slices.Concat(lines[:2], lines[1:]), ""),
		"row 5 was changed":                                      strings.Join(lines[:4], "") + strings.Replace(lines[4], `"count":3`, `"count":4`, 1) + strings.Join(lines[5:], ""),
		"line 2 of the export is not as it was written":          lines[0] + strings.Replace(lines[1], `"count":1`, `"count":1,"count":1`, 1),
		"line 1 of the export is not as it was written: it is J": strings.Replace(lines[0], `"count"`, `"COUNT"`, 1),
		"line 1 of the export is not as it was written: parsing": strings.Replace(lines[0], `.000Z`, `.000+01:00`, 1),
		"line 1 of the export is not as it was written: inv":     "no JSON\n",
	} {
		if _, err := VerifyExport(strings.NewReader(bad), &h); !errors.Is(err, ErrTampered) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for want, bad := range map[string]string{"unexpected EOF": text[:len(text)-1], "longer than": strings.Repeat("a", mostLine+1)} {
		if _, err := VerifyExport(strings.NewReader(bad), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestExportOfSome(t *testing.T) {
	l, _ := newLog(t)
	records := make([]Record, store.AuditPage+10)
	for i := range records {
		records[i] = Record{Action: "a", Decision: store.Denied, Object: fmt.Sprint(i % 3)}
	}
	if err := l.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		filter     Filter
		rows, gaps int64
	}{
		"all":    {Filter{}, 1010, 0},
		"limit":  {Filter{Limit: 1005, Newest: true}, 1005, 0},
		"object": {Filter{Object: "1"}, 337, 337},
		"page":   {Filter{Limit: 1000}, 1000, 0},
		"later":  {Filter{After: 1000}, 10, 1},
		"none":   {Filter{Object: "x"}, 0, 0},
	} {
		var b bytes.Buffer
		n, err := l.Export(t.Context(), &b, c.filter)
		if err != nil || n != c.rows {
			t.Errorf("%s: %d rows, %v", name, n, err)
		}
		report, err := VerifyExport(&b, nil)
		if err != nil || report.Rows != c.rows || report.Gaps != c.gaps {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
	}
	// A forged row in what was chosen is found, a row of the chosen ones that is missing cannot be.
	var b bytes.Buffer
	if _, err := l.Export(t.Context(), &b, Filter{Object: "1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyExport(strings.NewReader(strings.Replace(b.String(), "denied", "allowed", 1)), nil); !errors.Is(err, ErrTampered) {
		t.Errorf("got %v", err)
	}
}

// The program in the documentation agrees with this one.
func TestDocumentedCheck(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIP-FEATURE: no python3 here")
	}
	doc, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, found := strings.Cut(string(doc), "```python\n")
	program, _, ended := strings.Cut(program, "```")
	if !found || !ended {
		t.Fatal("docs/audit.md has no program")
	}
	check := func(export string) (string, error) {
		cmd := exec.Command(python, "-c", program)
		cmd.Stdin = strings.NewReader(export)
		cmd.Env = append(os.Environ(), "PYTHONUTF8=1")
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	l, text := exported(t)
	h := head(t, l)
	if out, err := check(text); err != nil || out != fmt.Sprintf("%d %s", h.Seq, h.Hash) {
		t.Errorf("%s, %v", out, err)
	}
	lines := strings.SplitAfter(text, "\n")
	for want, bad := range map[string]string{
		"row 3 is missing":              strings.Join(slices.Concat(lines[:2], lines[3:]), ""),
		"row 5 is not what was written": strings.Replace(text, `"count":3`, `"count":4`, 1),
		"row 2 is not what was written": strings.Replace(text, `"caller":"ctx_"`, `"caller":""`, 1),
	} {
		if out, err := check(bad); err == nil || out != want {
			t.Errorf("got %q, want %q", out, want)
		}
	}
}
