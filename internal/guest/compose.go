package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
)

func (s *Server) serveCompose(w http.ResponseWriter, r *http.Request) {
	var req composeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<20)).Decode(&req); err != nil {
		writeFailure(w, fmt.Errorf("%w: the body is not valid JSON: %w", errBadArgument, err))
		return
	}
	up, err := s.compose(r.Context(), r.Header, req)
	if err != nil {
		writeFailure(w, err)
		return
	}
	writeJSON(w, http.StatusOK, up.result()[0])
}

// composeRequest is the body of /files/compose.
type composeRequest struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose joins files, in order, into one, and removes them.
func (s *Server) compose(ctx context.Context, h http.Header, req composeRequest) (*upload, error) {
	user, err := s.userOf(h, req.Username)
	if err != nil {
		return nil, err
	}
	if len(req.SourcePaths) == 0 || req.Destination == "" {
		return nil, fmt.Errorf("%w: source_paths and destination are needed", errBadArgument)
	}
	var sources []string
	for _, name := range req.SourcePaths {
		path, err := s.resolve(name, user)
		if err != nil {
			return nil, err
		}
		f, _, err := openRegular(path)
		if err != nil {
			return nil, err
		}
		f.Close()
		sources = append(sources, path)
	}
	up := &upload{server: s, user: user}
	defer up.abandon()
	if err := up.add(req.Destination, &concat{ctx: ctx, paths: sources}); err != nil {
		return nil, err
	}
	if err := up.place(); err != nil {
		return nil, err
	}
	for _, path := range sources {
		if path == up.files[0].path || path == up.files[0].target {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return up, nil
}

// concat reads files one after the other, one open at a time.
type concat struct {
	ctx   context.Context
	paths []string
	file  *os.File
}

func (c *concat) Read(p []byte) (int, error) {
	for {
		if err := c.ctx.Err(); err != nil {
			return 0, err
		}
		if c.file == nil {
			if len(c.paths) == 0 {
				return 0, io.EOF
			}
			f, _, err := openRegular(c.paths[0])
			if err != nil {
				return 0, err
			}
			c.file, c.paths = f, c.paths[1:]
		}
		n, err := c.file.Read(p)
		if errors.Is(err, io.EOF) {
			c.file.Close()
			c.file, err = nil, nil
			if n == 0 {
				continue
			}
		}
		return n, err
	}
}
