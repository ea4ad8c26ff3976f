package term

import (
	"io"
	"strings"
)

// Column is a column of a table.
type Column struct {
	Title string
	Flex  bool // may be cut when the table is too wide; the last flexible one gives way first
	Right bool // aligned to the right
}

// Table writes rows under titles, within width cells (0 is no bound). Cells are made safe. A flexible column keeps
// at least eight cells, so that something of it can be read.
func Table(w io.Writer, width int, columns []Column, rows [][]string) error {
	const gap, least = 2, 8
	safe := make([][]string, 0, len(rows)+1)
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.Title
	}
	safe = append(safe, titles)
	for _, row := range rows {
		cells := make([]string, len(columns))
		for i := range columns {
			if i < len(row) {
				cells[i] = Safe(row[i])
			}
		}
		safe = append(safe, cells)
	}
	widths := make([]int, len(columns))
	total := gap * (len(columns) - 1)
	for i := range columns {
		for _, row := range safe {
			widths[i] = max(widths[i], Width(row[i]))
		}
		total += widths[i]
	}
	for i := len(columns) - 1; i >= 0 && width > 0 && total > width; i-- {
		if columns[i].Flex {
			cut := min(total-width, max(widths[i]-least, 0))
			widths[i] -= cut
			total -= cut
		}
	}
	var b strings.Builder
	for _, row := range safe {
		var line strings.Builder
		for i, cell := range row {
			cell = Truncate(cell, widths[i])
			pad := strings.Repeat(" ", widths[i]-Width(cell))
			if columns[i].Right {
				cell, pad = pad+cell, ""
			}
			line.WriteString(cell + pad)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", gap))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
