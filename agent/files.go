package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"ravi/internal/strictjson"
	"ravi/sandbox"
)

const (
	// mostFile is the largest file that is read or written by a tool.
	mostFile = 4 << 20
	// mostLines is how many lines of a file are read at once where no number is given, and mostLine what is shown of each.
	mostLines, mostLine = 2000, 2000
	mostListed          = 1000
)

// fileTool is one of those that read and write files. They differ in their arguments and in what they do.
type fileTool struct {
	hands *Hands
	spec  Spec
	do    func(ctx context.Context, fs files, args json.RawMessage) (string, error)
}

// FileTools are read, write, edit, list and search. In a sandbox they see what its user sees; on the host they see what is
// beneath the workspace, follow no link, and do not write into .git.
func FileTools(h *Hands) []Tool {
	tool := func(name, about, schema string, do func(context.Context, files, json.RawMessage) (string, error)) Tool {
		return &fileTool{h, Spec{Name: name, Description: about, Schema: json.RawMessage(schema)}, do}
	}
	return []Tool{
		tool("read", "Reads a text file, with its lines numbered.", `{"type":"object","properties":{
			"path":{"type":"string"},"offset":{"type":"integer","minimum":1,"description":"the first line"},
			"limit":{"type":"integer","minimum":1,"description":"how many lines"}},"required":["path"],"additionalProperties":false}`, readFile),
		tool("write", "Writes a whole file, and makes the folders above it.", `{"type":"object","properties":{
			"path":{"type":"string"},"content":{"type":"string"}},"required":["path","content"],"additionalProperties":false}`, writeFile),
		tool("edit", "Replaces a text in a file by another one. The old text must be there once, or all must be true.", `{"type":"object","properties":{
			"path":{"type":"string"},"old":{"type":"string"},"new":{"type":"string"},"all":{"type":"boolean"}},
			"required":["path","old","new"],"additionalProperties":false}`, editFile),
		tool("list", "Lists a folder.", `{"type":"object","properties":{
			"path":{"type":"string"},"depth":{"type":"integer","minimum":1,"maximum":5}},"additionalProperties":false}`, listFolder),
		tool("search", "Searches the files below a folder for lines that match an extended regular expression.", `{"type":"object","properties":{
			"pattern":{"type":"string"},"path":{"type":"string","description":"a file or folder; the workspace if it is left out"},
			"glob":{"type":"string","description":"only files with such names, as *.go"}},"required":["pattern"],"additionalProperties":false}`, searchFiles),
	}
}

func (t *fileTool) Spec() Spec { return t.spec }

func (t *fileTool) Do(ctx context.Context, args json.RawMessage) (Result, error) {
	sb := t.hands.Sandbox()
	if sb == nil {
		return Result{}, errNoHands
	}
	fs, err := filesOf(sb)
	if err != nil {
		return Result{}, err
	}
	defer fs.close()
	text, err := t.do(ctx, fs, args)
	var ended *sandbox.EndError
	switch {
	case err == nil:
		return Result{Text: text}, nil
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case errors.As(err, &ended):
		return Result{}, err
	}
	// What it says can hold names that the guest made up, so it is fenced as all else.
	return Result{Text: "Error: " + err.Error(), Failed: true}, nil
}

// files are those that tools see. Paths are as the model writes them.
type files interface {
	// read fails for more than mostFile bytes.
	read(ctx context.Context, name string) ([]byte, error)
	write(ctx context.Context, name string, data []byte) error
	// list gives one line an entry, and says whether there are more.
	list(ctx context.Context, name string, depth int) (lines []string, more bool, err error)
	// search gives lines as grep -n does.
	search(ctx context.Context, pattern, name, glob string) (found string, err error)
	close() error
}

func readFile(ctx context.Context, fs files, raw json.RawMessage) (string, error) {
	var a struct {
		Path   string `json:"path"`
		Offset int    `json:"offset"`
		Limit  int    `json:"limit"`
	}
	if err := strictjson.Decode(raw, &a); err != nil {
		return "", err
	}
	data, err := fs.read(ctx, a.Path)
	if err != nil {
		return "", err
	}
	if bytes.IndexByte(data[:min(len(data), 8<<10)], 0) >= 0 {
		return "", fmt.Errorf("%s is no text: it has %d bytes", a.Path, len(data))
	}
	lines := strings.SplitAfter(string(data), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	first := max(a.Offset, 1)
	if a.Limit <= 0 {
		a.Limit = mostLines
	}
	if first > len(lines) {
		return fmt.Sprintf("(%s has %d lines)", a.Path, len(lines)), nil
	}
	last := first - 1 + min(a.Limit, len(lines)-first+1)
	var b strings.Builder
	for i, line := range lines[first-1 : last] {
		fmt.Fprintf(&b, "%6d\t%s\n", first+i, headAndTail(strings.TrimRight(line, "\r\n"), mostLine))
	}
	if last < len(lines) {
		fmt.Fprintf(&b, "(lines %d to %d of %d)\n", first, last, len(lines))
	}
	return b.String(), nil
}

func writeFile(ctx context.Context, fs files, raw json.RawMessage) (string, error) {
	var a struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	if err := strictjson.Decode(raw, &a); err != nil {
		return "", err
	}
	if err := fs.write(ctx, a.Path, []byte(a.Content)); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d bytes to %s", len(a.Content), a.Path), nil
}

func editFile(ctx context.Context, fs files, raw json.RawMessage) (string, error) {
	var a struct {
		Path string `json:"path"`
		Old  string `json:"old"`
		New  string `json:"new"`
		All  bool   `json:"all"`
	}
	if err := strictjson.Decode(raw, &a); err != nil {
		return "", err
	}
	switch {
	case a.Old == "":
		return "", errors.New("the old text is empty: a file is made or replaced with write")
	case a.Old == a.New:
		return "", errors.New("the old text and the new one are the same")
	}
	data, err := fs.read(ctx, a.Path)
	if err != nil {
		return "", err
	}
	n := bytes.Count(data, []byte(a.Old))
	switch {
	case n == 0:
		return "", fmt.Errorf("the old text is not in %s: read it again, and copy it exactly", a.Path)
	case n > 1 && !a.All:
		return "", fmt.Errorf("the old text is %d times in %s: take more of what is around it, or say all", n, a.Path)
	}
	if grown := len(data) + n*(len(a.New)-len(a.Old)); grown > mostFile {
		return "", errors.New(tooMuch(a.Path+" would have", grown, mostFile))
	}
	if err := fs.write(ctx, a.Path, bytes.ReplaceAll(data, []byte(a.Old), []byte(a.New))); err != nil {
		return "", err
	}
	return fmt.Sprintf("replaced %d in %s", n, a.Path), nil
}

func listFolder(ctx context.Context, fs files, raw json.RawMessage) (string, error) {
	var a struct {
		Path  string `json:"path"`
		Depth int    `json:"depth"`
	}
	if err := strictjson.Decode(raw, &a); err != nil {
		return "", err
	}
	lines, more, err := fs.list(ctx, a.Path, min(max(a.Depth, 1), 5))
	if err != nil {
		return "", err
	}
	switch {
	case more:
		lines = append(lines, fmt.Sprintf("(there are more than %d)", len(lines)))
	case len(lines) == 0:
		lines = []string{"(it is empty)"}
	}
	return strings.Join(lines, "\n"), nil
}

func searchFiles(ctx context.Context, fs files, raw json.RawMessage) (string, error) {
	var a struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
		Glob    string `json:"glob"`
	}
	if err := strictjson.Decode(raw, &a); err != nil {
		return "", err
	}
	switch {
	case a.Pattern == "":
		return "", errors.New("there is no pattern")
	case strings.ContainsRune(a.Pattern+a.Path+a.Glob, 0):
		return "", errors.New("there is a zero byte in it")
	}
	found, err := fs.search(ctx, a.Pattern, a.Path, a.Glob)
	if err == nil && found == "" {
		found = "(nothing matches)"
	}
	return found, err
}

// inWorkspace is a path as the sandbox sees it: relative ones are below the workspace.
func inWorkspace(workspace, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(workspace, name)
}
