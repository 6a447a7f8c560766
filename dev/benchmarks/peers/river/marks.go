package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// The same marks as in marks.py: one mapped file, a record of 24 bytes for each run.
const (
	record = 24
	spare  = 2
)

var (
	began     = time.Now()
	offset    = monotonic()
	memory    []byte
	places    atomic.Int64
	markedDir = os.Getenv("BENCH_MARKS")
)

// monotonic asks the clock that all processes of the machine share.
func monotonic() int64 {
	var at syscall.Timespec
	const clockMonotonic = 1
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

func now() int64 { return offset + int64(time.Since(began)) }

func mark(index int, started int64) {
	at := (places.Add(1) - 1) * record
	binary.LittleEndian.PutUint64(memory[at+8:], uint64(started))
	binary.LittleEndian.PutUint64(memory[at+16:], uint64(now()))
	binary.LittleEndian.PutUint64(memory[at:], uint64(index+1))
}

// gather waits until all of a system's processes are here.
func gather(name string) error {
	parties, err := strconv.Atoi(os.Getenv("BENCH_PARTIES"))
	if err != nil {
		return err
	}
	here := filepath.Join(markedDir, fmt.Sprintf("%s.%d.here", name, os.Getpid()))
	if err := os.WriteFile(here, nil, 0o644); err != nil {
		return err
	}
	for {
		found, err := filepath.Glob(filepath.Join(markedDir, name+".*.here"))
		if err != nil || len(found) >= parties {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func openMarks() error {
	tasks, err := strconv.Atoi(os.Getenv("BENCH_N"))
	if err != nil {
		return err
	}
	size := record * (tasks*spare + 1)
	path := filepath.Join(markedDir, fmt.Sprintf("%d.marks", os.Getpid()))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if err := file.Truncate(int64(size)); err != nil {
		return err
	}
	memory, err = syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	return err
}
