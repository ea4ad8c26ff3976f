package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"ravi/internal/command"
	safe "ravi/internal/term"
	"ravi/sandbox"
)

func addSandboxCopy(t *command.Table) {
	add(t, command.Spec[copyInput, copied]{
		Group: "sandbox", Name: "cp", Access: command.Write, Reach: command.LocalOnly,
		Summary: "Copy files into a sandbox, or out of it",
		Long: `Copies a file or a folder. One of SRC and DST is SANDBOX:PATH, the other a path
of this machine, or - for standard input or output as one file. In the sandbox,
relative paths begin in its workspace. Into a folder that is there, the source
is copied under its own name; with /. at the end of SRC, what is in it is.

Symbolic links are copied as such, and never followed here. Nothing is written
outside of DST, whatever the sandbox sends. Owners are not kept. A path of this
machine with a colon in it is written with a ./ before it.`,
		Examples: []command.Example{
			{Line: "ravi sandbox cp ./src try:src"},
			{Line: "ravi sandbox cp try:/var/log/app.log ."},
			{What: "look at one file", Line: "ravi sandbox cp try:report.txt -"},
		},
		Defaults: copyInput{Most: 16},
		Handler:  copyFiles,
		Print:    func(*command.Env, io.Writer, copied) error { return nil },
	})
}

type copyInput struct {
	Source string `json:"source" arg:"SRC" host:"path" usage:"SANDBOX:PATH, a path of this machine, or -"`
	Target string `json:"target" arg:"DST" host:"path" usage:"the same, the other way round"`
	User   string `json:"user" flag:"user" short:"u" value:"USER" host:"none" usage:"who reads and writes in the sandbox"`
	Most   int    `json:"max" flag:"max" value:"GiB" host:"size" usage:"copy at most this much out of a sandbox"`
}

// copied is what a copy ended with.
type copied struct {
	Sandbox string `json:"sandbox"`
	Target  string `json:"target"`
	// Left are what is neither file, folder nor link, and was left where it is.
	Left []string `json:"left,omitempty"`
}

// stream stands for standard input or output.
const stream = "-"

// boxPath splits SANDBOX:PATH.
func boxPath(text string) (box, name string, ok bool) {
	box, name, ok = strings.Cut(text, ":")
	if !ok || box == "" || strings.HasPrefix(box, ".") || strings.Contains(box, "/") {
		return "", text, false
	}
	return box, name, true
}

// copier copies between this machine and one sandbox.
type copier struct {
	env   *command.Env
	files sandbox.Files
	root  string // where relative paths of the sandbox begin
	most  int64
	out   copied
}

func copyFiles(ctx context.Context, env *command.Env, in copyInput) (none copied, err error) {
	from, source, out := boxPath(in.Source)
	to, target, into := boxPath(in.Target)
	switch {
	case out == into:
		return none, command.Usage("exactly one of SRC and DST is a path in a sandbox", "write it as SANDBOX:PATH, such as: ravi sandbox cp ./src try:src")
	case source == "" || target == "":
		return none, command.Usage("a path is empty", "SANDBOX:. is the workspace")
	case in.Most < 1 || in.Most > 1<<20:
		return none, command.Usage(fmt.Sprintf("--max is %d", in.Most), "it is 1 or more GiB")
	}
	sb, b, err := attach(ctx, env, "cp", from+to)
	if err != nil {
		return none, err
	}
	defer sb.Close()
	c := &copier{env: env, files: sb.Files(), root: sb.Workspace(), most: int64(in.Most) << 30}
	if in.User != "" {
		c.files = c.files.As(in.User)
	}
	c.out = copied{Sandbox: b.ID}
	if out {
		err = c.copyOut(ctx, source, target)
	} else {
		err = c.copyIn(ctx, source, target)
	}
	for _, name := range c.out.Left {
		env.Progress.Log("left, since it is neither file, folder nor link: " + safe.Safe(name))
	}
	return c.out, copyError(err)
}

// copyError tells why something could not be copied.
func copyError(err error) error {
	if err == nil || errors.As(err, new(*command.Error)) {
		return err
	}
	told := &command.Error{Code: command.CodeInternal, Message: err.Error(), Exit: command.ExitFailed, Err: err}
	switch {
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		told.Code, told.Status = command.CodeNotFound, http.StatusNotFound
	case errors.Is(err, sandbox.ErrTooMuch):
		told.Code, told.Hint = command.CodeConflict, "allow more with --max; what was copied is there"
	case errors.Is(err, sandbox.ErrEnded):
		return execError(err)
	}
	return told
}

// inside is a path as the sandbox knows it.
func (c *copier) inside(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(c.root, name)
}

// within is the path that a source of a name gets in a folder. Of / and .. there is no name.
func within(source string) (string, error) {
	base := path.Base(path.Clean(source))
	if base == "/" || base == "." || base == ".." {
		return "", command.Usage(fmt.Sprintf("the source %.100q has no name to be copied under", source), "to copy what is in it, write /. at its end")
	}
	return base, nil
}

// contents says whether what is in a folder is meant, and not the folder.
func contents(source string) bool { return source == "." || strings.HasSuffix(source, "/.") }

func (c *copier) copyOut(ctx context.Context, source, target string) error {
	at := c.inside(source)
	if target == stream {
		r, err := c.files.Read(ctx, at)
		if err != nil {
			return err
		}
		defer r.Close()
		var w io.Writer = c.env.Stdout
		if c.env.StdoutTerminal {
			w = safe.NewWriter(w)
		}
		_, err = io.Copy(w, r)
		return err
	}
	e, err := c.files.Stat(ctx, at)
	if err != nil {
		return err
	}
	if info, err := os.Stat(target); err == nil && info.IsDir() && !(e.Kind == "dir" && contents(source)) {
		base, err := within(at)
		if err != nil {
			return err
		}
		target = filepath.Join(target, base)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.out.Target = target
	switch e.Kind {
	case "dir":
		if info, err := os.Lstat(target); err == nil && !info.IsDir() {
			return command.Usage(fmt.Sprintf("%s is there, and no folder", target), "name another place, or remove it")
		}
		return c.files.CopyOutMost(ctx, at, target, c.most)
	case "file", "symlink": // a link is followed where it was made
		err := c.fileOut(ctx, at, target, e.Mode.Perm())
		if err != nil && e.Kind == "symlink" {
			err = fmt.Errorf("%s is a symbolic link to %.200q: %w", at, e.Target, err)
		}
		return err
	}
	return command.Usage(at+" is neither a file nor a folder", "")
}

// fileOut writes one file beside its place and moves it there, so that nothing that lies there is followed.
func (c *copier) fileOut(ctx context.Context, at, target string, mode fs.FileMode) (err error) {
	r, err := c.files.Read(ctx, at)
	if err != nil {
		return err
	}
	defer r.Close()
	if info, err := os.Lstat(target); err == nil && info.IsDir() {
		return command.Usage(target+" is a folder", "")
	}
	dir, base := filepath.Split(target)
	part, err := os.CreateTemp(filepath.Join(dir, "."), ".ravi-cp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, part.Close(), os.Remove(part.Name()))
		}
	}()
	n, err := io.Copy(part, io.LimitReader(r, c.most+1))
	if err == nil && n > c.most {
		err = fmt.Errorf("%s: %w", at, sandbox.ErrTooMuch)
	}
	if err == nil {
		err = part.Chmod(0o644 | mode&0o111)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(part.Name(), filepath.Join(dir, base)); err != nil {
		return err
	}
	return part.Close()
}

func (c *copier) copyIn(ctx context.Context, source, target string) error {
	at := c.inside(target)
	if source == stream {
		if strings.HasSuffix(target, "/") {
			return command.Usage("standard input has no name to be copied under", "name a file")
		}
		c.out.Target = at
		return c.files.Write(ctx, at, c.env.Stdin)
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return command.Usage(source+" is neither a file nor a folder", "")
	}
	e, err := c.files.Stat(ctx, at)
	there := err == nil && e.Kind == "dir"
	if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	if there && !(info.IsDir() && contents(source)) || !info.IsDir() && strings.HasSuffix(target, "/") {
		abs, err := filepath.Abs(source)
		if err != nil {
			return err
		}
		base, err := within(filepath.ToSlash(abs))
		if err != nil {
			return err
		}
		at = path.Join(at, base)
	}
	c.out.Target = at
	if !info.IsDir() {
		return c.send(ctx, path.Dir(at), func(w *tar.Writer) error {
			f, err := os.Open(source)
			if err != nil {
				return err
			}
			defer f.Close()
			return addFile(w, path.Base(at), f)
		})
	}
	root, err := os.OpenRoot(source)
	if err != nil {
		return err
	}
	defer root.Close()
	return c.send(ctx, at, func(w *tar.Writer) error { return c.addTree(w, root) })
}

// send lays out what fill writes in a folder of the sandbox, which is made if need be.
func (c *copier) send(ctx context.Context, dir string, fill func(*tar.Writer) error) error {
	r, w := io.Pipe()
	go func() {
		archive := tar.NewWriter(w)
		err := fill(archive)
		if err == nil {
			err = archive.Close()
		}
		w.CloseWithError(err)
	}()
	err := c.files.Untar(ctx, dir, r)
	r.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // whoever still writes has no reader
	return err
}

// addTree adds all that is beneath root. Links are not followed, also if they are put there meanwhile.
func (c *copier) addTree(w *tar.Writer, root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		switch kind := d.Type(); {
		case kind.IsDir():
			info, err := d.Info()
			if err != nil {
				return err
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()})
		case kind&fs.ModeSymlink != 0:
			to, err := root.Readlink(name)
			if err != nil {
				return err
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777})
		case kind.IsRegular():
			f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			return addFile(w, name, f)
		}
		c.out.Left = append(c.out.Left, name)
		return nil
	})
}

func addFile(w *tar.Writer, name string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file any more", name)
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size(), ModTime: info.ModTime()}); err != nil {
		return err
	}
	// What is added while it is read is left out, and what is taken away an error.
	if _, err := io.CopyN(w, f, info.Size()); err != nil {
		return fmt.Errorf("%s became shorter while it was read: %w", name, err)
	}
	return nil
}
