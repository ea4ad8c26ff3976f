package relay

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/filesystem"
	"ravi/internal/guestapi/filesystem/filesystemconnect"
	"ravi/internal/guestapi/process"
	"ravi/internal/guestapi/process/processconnect"
	"ravi/internal/guestapi/ravi"
	"ravi/internal/guestapi/ravi/raviconnect"
)

// roundTripper is the one connection to the guest.
type roundTripper interface {
	RoundTrip(*http.Request) (*http.Response, error)
}

// bounded cuts the guest's answers to single calls. The library reads one that
// is too long to its end before it refuses it, and a hostile one has no end.
type bounded struct{ guest roundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.guest.RoundTrip(r)
	if err == nil && r.Header.Get("Content-Type") == "application/proto" {
		// One byte more than the library takes, so that it still says why.
		res.Body = cutBody{io.LimitReader(res.Body, guestapi.MaxMessage+1), res.Body}
	}
	return res, err
}

type cutBody struct {
	io.Reader
	io.Closer
}

// newRelay serves the guest's protocol by asking the guest. Every message is
// decoded and encoded anew, so that the owner only ever parses what this
// process has written.
func newRelay(guest roundTripper) http.Handler {
	hc := &http.Client{Transport: bounded{guest}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c := guestapi.NewClient(hc, "http://guest")
	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(guestapi.MaxMessage),
		connect.WithCompression("gzip", nil, nil),
	}
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(processRelay{c}, opts...))
	mux.Handle(filesystemconnect.NewFilesystemHandler(filesystemRelay{c}, opts...))
	mux.Handle(raviconnect.NewGuestHandler(guestRelay{c}, opts...))
	plain := &plainRelay{hc}
	for _, p := range []string{"/files", "/files/compose", "/tar", "/health", "/metrics", "/init", "/envs"} {
		mux.Handle(p, plain)
	}
	mux.Handle("/port", newPortRelay(hc))
	return mux
}

// forwarded are the request headers that the guest may see.
var forwarded = []string{
	"Authorization", "Keepalive-Ping-Interval", "X-Access-Token",
	"Content-Type", "Content-Encoding", "Accept-Encoding", "Range",
	"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range",
}

func forward(to, from http.Header) {
	for _, k := range forwarded {
		if v := from.Values(k); len(v) > 0 {
			to[k] = v
		}
	}
	for k, v := range from {
		if strings.HasPrefix(k, "X-Metadata-") {
			to[k] = v
		}
	}
}

// clean makes an error of the guest's safe to pass on: a known code and a
// bounded text, no details.
func clean(err error) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	code := ce.Code()
	switch {
	case connect.IsWireError(err), code == connect.CodeCanceled, code == connect.CodeDeadlineExceeded:
	case errors.Is(err, io.ErrUnexpectedEOF), code == connect.CodeUnavailable:
		code = connect.CodeUnavailable // the link is cut, which is not the guest's word
	default:
		code = connect.CodeInternal // it said what cannot be read, or too much
	}
	return connect.NewError(code, errors.New(cleanText(ce.Message())))
}

func cleanText(s string) string {
	const most = 4096
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, string(utf8.RuneError))
}

func unary[Q, S any](ctx context.Context, call func(context.Context, *connect.Request[Q]) (*connect.Response[S], error), in *connect.Request[Q]) (*connect.Response[S], error) {
	req := connect.NewRequest(in.Msg)
	forward(req.Header(), in.Header())
	res, err := call(ctx, req)
	if err != nil {
		return nil, clean(err)
	}
	return connect.NewResponse(res.Msg), nil
}

func stream[Q, S any](ctx context.Context, call func(context.Context, *connect.Request[Q]) (*connect.ServerStreamForClient[S], error), in *connect.Request[Q], out *connect.ServerStream[S]) error {
	req := connect.NewRequest(in.Msg)
	forward(req.Header(), in.Header())
	s, err := call(ctx, req)
	if err != nil {
		return clean(err)
	}
	defer s.Close()
	for s.Receive() {
		if err := out.Send(s.Msg()); err != nil {
			return err
		}
	}
	return clean(s.Err())
}

type processRelay struct{ c *guestapi.Client }

func (r processRelay) List(ctx context.Context, in *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	return unary(ctx, r.c.Process.List, in)
}

func (r processRelay) Connect(ctx context.Context, in *connect.Request[process.ConnectRequest], out *connect.ServerStream[process.ConnectResponse]) error {
	return stream(ctx, r.c.Process.Connect, in, out)
}

func (r processRelay) Start(ctx context.Context, in *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	return stream(ctx, r.c.Process.Start, in, out)
}

func (r processRelay) Update(ctx context.Context, in *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	return unary(ctx, r.c.Process.Update, in)
}

func (r processRelay) StreamInput(ctx context.Context, in *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	out := r.c.Process.StreamInput(ctx)
	forward(out.RequestHeader(), in.RequestHeader())
	for in.Receive() {
		if err := out.Send(in.Msg()); err != nil {
			break // the reason comes with the response
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	res, err := out.CloseAndReceive()
	if err != nil {
		return nil, clean(err)
	}
	return connect.NewResponse(res.Msg), nil
}

func (r processRelay) SendInput(ctx context.Context, in *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	return unary(ctx, r.c.Process.SendInput, in)
}

func (r processRelay) SendSignal(ctx context.Context, in *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	return unary(ctx, r.c.Process.SendSignal, in)
}

func (r processRelay) CloseStdin(ctx context.Context, in *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	return unary(ctx, r.c.Process.CloseStdin, in)
}

type filesystemRelay struct{ c *guestapi.Client }

func (r filesystemRelay) Stat(ctx context.Context, in *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	return unary(ctx, r.c.Filesystem.Stat, in)
}

func (r filesystemRelay) MakeDir(ctx context.Context, in *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	return unary(ctx, r.c.Filesystem.MakeDir, in)
}

func (r filesystemRelay) Move(ctx context.Context, in *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	return unary(ctx, r.c.Filesystem.Move, in)
}

func (r filesystemRelay) ListDir(ctx context.Context, in *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	return unary(ctx, r.c.Filesystem.ListDir, in)
}

func (r filesystemRelay) Remove(ctx context.Context, in *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	return unary(ctx, r.c.Filesystem.Remove, in)
}

func (r filesystemRelay) WatchDir(ctx context.Context, in *connect.Request[filesystem.WatchDirRequest], out *connect.ServerStream[filesystem.WatchDirResponse]) error {
	return stream(ctx, r.c.Filesystem.WatchDir, in, out)
}

func (r filesystemRelay) CreateWatcher(ctx context.Context, in *connect.Request[filesystem.CreateWatcherRequest]) (*connect.Response[filesystem.CreateWatcherResponse], error) {
	return unary(ctx, r.c.Filesystem.CreateWatcher, in)
}

func (r filesystemRelay) GetWatcherEvents(ctx context.Context, in *connect.Request[filesystem.GetWatcherEventsRequest]) (*connect.Response[filesystem.GetWatcherEventsResponse], error) {
	return unary(ctx, r.c.Filesystem.GetWatcherEvents, in)
}

func (r filesystemRelay) RemoveWatcher(ctx context.Context, in *connect.Request[filesystem.RemoveWatcherRequest]) (*connect.Response[filesystem.RemoveWatcherResponse], error) {
	return unary(ctx, r.c.Filesystem.RemoveWatcher, in)
}

type guestRelay struct{ c *guestapi.Client }

func (r guestRelay) Events(ctx context.Context, in *connect.Request[ravi.EventsRequest], out *connect.ServerStream[ravi.Event]) error {
	return stream(ctx, r.c.Guest.Events, in, out)
}

func (r guestRelay) Kill(ctx context.Context, in *connect.Request[ravi.KillRequest]) (*connect.Response[ravi.KillResponse], error) {
	return unary(ctx, r.c.Guest.Kill, in)
}

// plainRelay passes on the calls that are plain HTTP.
type plainRelay struct{ hc *http.Client }

// answered are the response headers that the owner may see.
var answered = []string{
	"Content-Type", "Content-Length", "Content-Range", "Content-Disposition", "Content-Encoding",
	"Accept-Ranges", "Etag", "Last-Modified", "Vary",
}

// tarTrailers are the trailers in which /tar counts what it sent and left out.
var tarTrailers = []string{"Ravi-Tar-Entries", "Ravi-Tar-Skipped", "Ravi-Tar-Changed"}

func (p *plainRelay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, "http://guest"+r.URL.RequestURI(), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	req.ContentLength = r.ContentLength
	forward(req.Header, r.Header)
	res, err := p.hc.Do(req)
	if err != nil {
		http.Error(w, cleanText(err.Error()), http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	kind := res.Header.Get("Content-Type")
	switch {
	case strings.HasPrefix(kind, "application/json") && res.Header.Get("Content-Encoding") == "" && r.URL.Path != "/files", strings.HasPrefix(kind, "application/json") && (r.Method == http.MethodPost || res.StatusCode >= 400):
		recode(w, res)
	case r.URL.Path == "/tar" && r.Method == http.MethodGet && res.StatusCode == http.StatusOK:
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set("Trailer", strings.Join(tarTrailers, ", "))
		err := copyTar(w, res.Body, maxTarEntries)
		if err == nil {
			err = toEnd(res.Body)
		}
		if err != nil {
			// The owner must see that the archive is cut.
			panic(http.ErrAbortHandler)
		}
		for _, k := range tarTrailers {
			if n, err := strconv.ParseUint(res.Trailer.Get(k), 10, 63); err == nil {
				w.Header().Set(k, strconv.FormatUint(n, 10))
			}
		}
	default:
		for _, k := range answered {
			if v := res.Header.Get(k); v != "" {
				w.Header().Set(k, v)
			}
		}
		w.WriteHeader(res.StatusCode)
		if err := copyFlushing(w, res.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// recode reads a JSON answer and writes it anew.
func recode(w http.ResponseWriter, res *http.Response) {
	const most = 1 << 20
	var v any
	body := io.LimitReader(res.Body, most)
	dec := json.NewDecoder(body)
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		http.Error(w, "the guest's answer is not JSON of a sensible size", http.StatusBadGateway)
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "the guest's answer cannot be passed on", http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(b) // the owner went away
}

func copyFlushing(w http.ResponseWriter, r io.Reader) error {
	buf := make([]byte, 256<<10)
	flush := http.NewResponseController(w)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			_ = flush.Flush()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// toEnd reads what an archive is padded with, up to the end of the stream, with
// which the trailers come.
func toEnd(r io.Reader) error {
	const most = 1 << 20
	n, err := io.CopyN(io.Discard, r, most)
	switch {
	case err == io.EOF:
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%d bytes follow the archive, and more", n)
}

// maxTarEntries bounds an archive that the guest sends.
const maxTarEntries = 2_000_000

// copyTar reads an archive from the guest and writes one of our own: plain
// files, folders and links with relative names, nothing else, and at most so many.
func copyTar(w io.Writer, r io.Reader, most int) error {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	buf := make([]byte, 64<<10)
	for n := 0; ; n++ {
		h, err := in.Next()
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if n >= most {
			return fmt.Errorf("more than %d entries", most)
		}
		clean, err := cleanHeader(h)
		if err != nil {
			return err
		}
		if err := out.WriteHeader(clean); err != nil {
			return err
		}
		if _, err := io.CopyBuffer(out, in, buf); err != nil {
			return err
		}
	}
}

// cleanHeader keeps of an entry what a file needs.
func cleanHeader(h *tar.Header) (*tar.Header, error) {
	name := path.Clean(h.Name)
	if !localName(name) {
		return nil, fmt.Errorf("an entry outside the archive's folder: %q", h.Name)
	}
	c := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o777,
		ModTime: h.ModTime.Truncate(time.Microsecond), Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		c.Typeflag, c.Size = tar.TypeReg, h.Size
	case tar.TypeDir:
		c.Name += "/"
	case tar.TypeSymlink:
		c.Linkname = h.Linkname
	case tar.TypeLink:
		if c.Linkname = path.Clean(h.Linkname); !localName(c.Linkname) {
			return nil, fmt.Errorf("a link outside the archive's folder: %q", h.Linkname)
		}
	default:
		return nil, fmt.Errorf("%q is neither file, folder nor link", h.Name)
	}
	return c, nil
}

func localName(name string) bool {
	return name != "" && !path.IsAbs(name) && name != ".." && !strings.HasPrefix(name, "../") && !strings.ContainsRune(name, 0)
}
