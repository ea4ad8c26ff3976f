package run

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"

	"ravi/internal/redact"
)

// secretsIn names the secrets that a patch holds: in its text, and in the files
// that git put into it as binary.
//
// What it cannot see: files under LFS, whose content is not in a patch; what is
// compressed, encrypted or encoded inside a file; a value that is broken over
// lines; and of a changed binary file a value of which a part was there before.
func secretsIn(ctx context.Context, r *redact.Redactor, path string) ([]string, error) {
	if r == nil {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := found(ctx, r, f)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for in := bufio.NewReaderSize(f, 64<<10); ; {
		data, err := nextBinary(in)
		if data == nil {
			return names, err
		}
		more, err := found(ctx, r, data)
		if err == nil {
			_, err = io.Copy(io.Discard, data.lines)
		}
		if err != nil {
			return nil, fmt.Errorf("a binary file in the patch: %w", err)
		}
		for _, n := range more {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
}

// found names the secrets in a stream.
func found(ctx context.Context, r *redact.Redactor, src io.Reader) ([]string, error) {
	w := r.Writer(io.Discard)
	// Little may become much when it is inflated: whoever waits can end it.
	if _, err := io.Copy(w, until{ctx, src}); err != nil {
		return nil, err
	}
	// The last one may have waited for what follows.
	if err := w.Close(); err != nil {
		return nil, err
	}
	return w.Found(), nil
}

// until reads as long as ctx lasts.
type until struct {
	ctx context.Context
	src io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.src.Read(p)
}

// nextBinary finds the next binary content in a patch; nil: there is none. All
// other lines of a patch that could look like its beginning have a sign before
// them.
func nextBinary(in *bufio.Reader) (*inflated, error) {
	for start := true; ; {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		whole := start && err == nil
		start = err == nil
		if !whole {
			continue
		}
		delta := bytes.HasPrefix(line, []byte("delta "))
		if delta || bytes.HasPrefix(line, []byte("literal ")) {
			return newInflated(&base85{in: in}, delta)
		}
	}
}

// inflated is the content of a binary file in a patch; of a delta, what it adds.
type inflated struct {
	lines *base85
	src   *bufio.Reader
	delta bool
	left  int // of what a delta adds now
}

func newInflated(lines *base85, delta bool) (*inflated, error) {
	z, err := zlib.NewReader(lines)
	if err != nil {
		return nil, fmt.Errorf("a binary file in the patch: %w", err)
	}
	d := &inflated{lines: lines, src: bufio.NewReader(z), delta: delta}
	if delta {
		for range 2 { // the sizes before and after
			if _, err := binary.ReadUvarint(d.src); err != nil {
				return nil, fmt.Errorf("a binary file in the patch: %w", err)
			}
		}
	}
	return d, nil
}

func (d *inflated) Read(p []byte) (int, error) {
	if !d.delta {
		return d.src.Read(p)
	}
	for d.left == 0 {
		op, err := d.src.ReadByte()
		if err != nil {
			return 0, err
		}
		if op < 0x80 {
			d.left = int(op)
			continue
		}
		// It takes something over from before; each bit is a byte of where and
		// how much.
		if _, err := d.src.Discard(bits.OnesCount8(op & 0x7f)); err != nil {
			return 0, err
		}
	}
	n, err := d.src.Read(p[:min(len(p), d.left)])
	d.left -= n
	return n, err
}

// base85 reads lines as git writes them: a letter for how many bytes, then five
// characters for each four. An empty line ends them.
type base85 struct {
	in   *bufio.Reader
	data []byte
	err  error
}

const base85Digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

var errBase85 = errors.New("its lines are not what git writes")

func (b *base85) Read(p []byte) (int, error) {
	for len(b.data) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.data, b.err = b.line()
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

func (b *base85) line() ([]byte, error) {
	line, err := b.in.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	line = line[:len(line)-1]
	if len(line) == 0 {
		return nil, io.EOF
	}
	size := 0
	switch c := line[0]; {
	case 'A' <= c && c <= 'Z':
		size = int(c-'A') + 1
	case 'a' <= c && c <= 'z':
		size = int(c-'a') + 27
	}
	line = line[1:]
	if size == 0 || len(line) != (size+3)/4*5 {
		return nil, errBase85
	}
	var out []byte
	for group := range slices.Chunk(line, 5) {
		var n uint64
		for _, c := range group {
			digit := bytes.IndexByte([]byte(base85Digits), c)
			if digit < 0 {
				return nil, errBase85
			}
			n = n*85 + uint64(digit)
		}
		out = binary.BigEndian.AppendUint32(out, uint32(n))
	}
	return out[:size], nil
}
