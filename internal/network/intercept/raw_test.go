package intercept

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"io"
	"testing"

	http2frames "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// echList is what a server publishes so that clients encrypt their ClientHello.
// The name that stays visible is the allowed one.
func echList(t *testing.T) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	be16 := func(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }
	var c []byte
	c = append(c, 1)
	c = append(c, be16(0x20)...)
	c = append(c, be16(32)...)
	c = append(c, key.PublicKey().Bytes()...)
	c = append(c, 0, 4, 0, 1, 0, 1)
	c = append(c, 64, byte(len(site)))
	c = append(c, site...)
	c = append(c, 0, 0)
	config := append(append(be16(extensionECH), be16(len(c))...), c...)
	return append(be16(len(config)), config...)
}

// rawH2 is a client that can send what a decent one would not.
type rawH2 struct {
	t   *testing.T
	fr  *http2frames.Framer
	buf bytes.Buffer
	enc *hpack.Encoder
	// What came, by stream.
	status map[uint32]string
	ended  map[uint32]bool
	data   map[uint32]bool
}

func newRawH2(t *testing.T, conn io.ReadWriter) *rawH2 {
	t.Helper()
	h := &rawH2{t: t, fr: http2frames.NewFramer(conn, conn), status: map[uint32]string{}, ended: map[uint32]bool{}, data: map[uint32]bool{}}
	h.enc = hpack.NewEncoder(&h.buf)
	h.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(conn, preface); err != nil {
		t.Fatal(err)
	}
	if err := h.fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return h
}

// get sends a request and returns the status, or "" if the stream was reset.
func (h *rawH2) get(stream uint32, headers [][2]string) string {
	h.t.Helper()
	h.buf.Reset()
	for _, kv := range headers {
		h.enc.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]})
	}
	err := h.fr.WriteHeaders(http2frames.HeadersFrameParam{StreamID: stream, BlockFragment: h.buf.Bytes(), EndStream: true, EndHeaders: true})
	if err != nil {
		h.t.Fatal(err)
	}
	for !h.ended[stream] {
		f, err := h.fr.ReadFrame()
		if err != nil {
			h.t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2frames.SettingsFrame:
			if !f.IsAck() {
				h.fr.WriteSettingsAck()
			}
		case *http2frames.MetaHeadersFrame:
			if s := f.PseudoValue("status"); s != "" {
				h.status[f.StreamID] = s
			}
			h.ended[f.StreamID] = f.StreamEnded()
		case *http2frames.DataFrame:
			h.data[f.StreamID] = true
			h.ended[f.StreamID] = f.StreamEnded()
		case *http2frames.RSTStreamFrame:
			h.ended[f.StreamID] = true
		case *http2frames.GoAwayFrame:
			h.t.Fatalf("GOAWAY: %v %s", f.ErrCode, f.DebugData())
		}
	}
	return h.status[stream]
}
