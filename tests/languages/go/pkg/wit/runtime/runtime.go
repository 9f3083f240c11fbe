// Package runtime gives memory to the bindings of `wit-bindgen go`, and to the host.
package runtime

import (
	"runtime"
	"unsafe"
)

var pinner runtime.Pinner

// The adapter of WASI asks for memory before the runtime of Go has started.
var started = false

func init() { started = true }

//go:linkname sbrk runtime.sbrk
func sbrk(size uintptr) unsafe.Pointer

// Allocate returns memory that stays until `p` is unpinned. An alignment is at most 8.
func Allocate(p *runtime.Pinner, size, align uintptr) unsafe.Pointer {
	if size == 0 {
		return unsafe.Pointer(align)
	}
	memory := unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	p.Pin(memory)
	return memory
}

// Unpin frees the arguments of the last call.
func Unpin() { pinner.Unpin() }

//go:wasmexport cabi_realloc
func cabiRealloc(_ unsafe.Pointer, oldSize, align, newSize uintptr) unsafe.Pointer {
	if oldSize != 0 {
		panic("no caller lets memory grow")
	}
	if started {
		return Allocate(&pinner, newSize, align)
	}
	start := uintptr(sbrk(newSize + align))
	return unsafe.Pointer((start + align - 1) &^ (align - 1))
}
