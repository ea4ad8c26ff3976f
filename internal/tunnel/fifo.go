package tunnel

import "sync"

const chunkSize = 16 << 10

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// fifo is a queue of bytes in chunks, so that many small pieces take no more room than few large ones, and an empty one
// takes none.
type fifo struct {
	chunks []*[chunkSize]byte
	head   int // where the first byte is in the first chunk
	size   int
}

func (q *fifo) write(p []byte) {
	for len(p) > 0 {
		end := q.head + q.size
		if end == len(q.chunks)*chunkSize {
			q.chunks = append(q.chunks, chunks.Get().(*[chunkSize]byte))
		}
		n := copy(q.chunks[end/chunkSize][end%chunkSize:], p)
		q.size += n
		p = p[n:]
	}
}

// peek copies what begins at the offset from the head, and returns how much that was.
func (q *fifo) peek(offset int, p []byte) int {
	p = p[:max(0, min(len(p), q.size-offset))]
	done := 0
	for at := q.head + offset; done < len(p); {
		n := copy(p[done:], q.chunks[at/chunkSize][at%chunkSize:])
		done += n
		at += n
	}
	return done
}

func (q *fifo) drop(n int) {
	q.size -= n
	q.head += n
	gone := q.head / chunkSize
	if q.size == 0 {
		gone = len(q.chunks)
		q.head = 0
	}
	for i, c := range q.chunks[:gone] {
		chunks.Put(c)
		q.chunks[i] = nil
	}
	q.chunks = q.chunks[gone:]
	if q.size == 0 {
		q.chunks = nil
	} else {
		q.head %= chunkSize
	}
}

func (q *fifo) read(p []byte) int {
	n := q.peek(0, p)
	q.drop(n)
	return n
}
