package abi

import "unsafe"

//go:linkname sbrk runtime.sbrk
func sbrk(size uintptr) unsafe.Pointer

// The host, and the adapter of WASI, ask for memory by this function. The adapter does before the runtime of Go has started.
//
//go:wasmexport cabi_realloc
func cabiRealloc(_ unsafe.Pointer, oldSize, align, newSize uintptr) unsafe.Pointer {
	if oldSize != 0 {
		panic("no caller lets memory grow")
	}
	if isStarted {
		return Allocate(newSize)
	}
	start := uintptr(sbrk(newSize + align))
	return unsafe.Pointer((start + align - 1) &^ (align - 1))
}
