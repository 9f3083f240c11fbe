//! The streams of WASI: stdout and stderr become log lines, and stdin is at its end.

use std::mem::take;

use memchr::{memchr, memchr_iter};
use wasmtime::{Result, component::Resource};

use super::{
    super::{
        super::{
            bindings::wasi::wasi::io::{
                error,
                poll::Pollable,
                streams::{self, InputStream, OutputStream, StreamError},
            },
            text::shorten,
        },
        Imports,
        host_state::HostState,
        log::{self, Level, LogLine},
    },
    WasiCall,
    time::READY,
};

/// The handle of stdout, and of stderr.
pub(super) const STDOUT: u32 = 1;
pub(super) const STDERR: u32 = 2;

/// Bytes that a guest may write at once. It may write as often as it wants.
const PERMIT: u64 = 64 << 10;

/// Bytes of the end of stderr that an error quotes: a panic, or a traceback.
const MAX_QUOTED: usize = 2 << 10;

/// The lines of a call that are not complete.
#[derive(Default)]
pub(in super::super) struct Output {
    stdout: Line,
    stderr: Line,
    /// The end of what was written to stderr.
    quoted: Vec<u8>,
}

/// An incomplete line. Keeps one byte more than a log line shows, so that the cut is marked.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    fn extend(&mut self, bytes: &[u8]) {
        let room = (LogLine::MAX_MESSAGE + 1).saturating_sub(self.0.len());
        self.0.extend(bytes.iter().take(room));
    }

    /// Returns the text, unless it is blank.
    fn take(&mut self) -> Option<String> {
        let text = take(&mut self.0);
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl Output {
    fn line(&mut self, stream: u32) -> (&mut Line, Level) {
        if stream == STDERR { (&mut self.stderr, Level::Warn) } else { (&mut self.stdout, Level::Info) }
    }

    /// Adds to a stream, and logs the lines that are complete.
    fn write(&mut self, stream: u32, bytes: &[u8], log: &mut log::State, imports: Option<&dyn Imports>) {
        if stream == STDERR {
            self.quoted.extend(bytes.get(bytes.len().saturating_sub(MAX_QUOTED)..).unwrap_or_default());
            let surplus = self.quoted.len().saturating_sub(MAX_QUOTED);
            self.quoted.drain(..surplus);
        }
        let (line, level) = self.line(stream);
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            if log.is_full() {
                // Counted at once: millions of lines may follow.
                let last = memchr_iter(b'\n', rest).count();
                log.drop_lines(u32::try_from(last).unwrap_or(u32::MAX));
                line.0.clear();
                rest = rest.get(memchr::memrchr(b'\n', rest).map_or(0, |end| end + 1)..).unwrap_or_default();
                break;
            }
            let (complete, later) = rest.split_at(end);
            line.extend(complete);
            if let Some(text) = line.take() {
                log.add(&LogLine::new(level, text, Vec::new()), imports);
            }
            rest = later.get(1..).unwrap_or_default();
        }
        line.extend(rest);
    }

    /// Logs the lines that are not complete.
    pub(super) fn finish(&mut self, log: &mut log::State, imports: Option<&dyn Imports>) {
        for stream in [STDOUT, STDERR] {
            let (line, level) = self.line(stream);
            if let Some(text) = line.take() {
                log.add(&LogLine::new(level, text, Vec::new()), imports);
            }
        }
    }

    /// Returns the end of what was written to stderr, in one line.
    pub(in super::super) fn quoted(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.quoted);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        (!lines.is_empty()).then(|| shorten(log::escaped(&lines.join(" | ")), log::LogLine::MAX_MESSAGE))
    }
}

impl HostState {
    fn write(&mut self, stream: &Resource<OutputStream>, bytes: &[u8]) -> Result<Result<(), StreamError>> {
        let imports = self.admit(WasiCall::Io, bytes.len())?;
        let interfaces = &mut self.call.interfaces;
        interfaces.wasi.output.write(stream.rep(), bytes, &mut interfaces.log, imports.as_deref());
        Ok(Ok(()))
    }

    fn always_ready(&mut self) -> Result<Resource<Pollable>> {
        self.admit(WasiCall::Io, 0)?;
        self.handle(READY)
    }

    /// Answers a read of stdin.
    fn at_the_end<T>(&mut self) -> Result<Result<T, StreamError>> {
        self.admit(WasiCall::Io, 0)?;
        Ok(Err(StreamError::Closed))
    }

    fn done(&mut self) -> Result<Result<(), StreamError>> {
        self.admit(WasiCall::Io, 0)?;
        Ok(Ok(()))
    }
}

impl error::Host for HostState {}

impl error::HostError for HostState {
    fn to_debug_string(&mut self, _: Resource<error::Error>) -> Result<String> {
        self.admit(WasiCall::Io, 0)?;
        Ok(String::new())
    }

    fn drop(&mut self, _: Resource<error::Error>) -> Result<()> {
        Ok(())
    }
}

impl streams::Host for HostState {}

impl streams::HostInputStream for HostState {
    fn read(&mut self, _: Resource<InputStream>, _: u64) -> Result<Result<Vec<u8>, StreamError>> {
        self.at_the_end()
    }

    fn blocking_read(&mut self, _: Resource<InputStream>, _: u64) -> Result<Result<Vec<u8>, StreamError>> {
        self.at_the_end()
    }

    fn skip(&mut self, _: Resource<InputStream>, _: u64) -> Result<Result<u64, StreamError>> {
        self.at_the_end()
    }

    fn blocking_skip(&mut self, _: Resource<InputStream>, _: u64) -> Result<Result<u64, StreamError>> {
        self.at_the_end()
    }

    fn subscribe(&mut self, _: Resource<InputStream>) -> Result<Resource<Pollable>> {
        self.always_ready()
    }

    fn drop(&mut self, _: Resource<InputStream>) -> Result<()> {
        self.drop_handle();
        Ok(())
    }
}

impl streams::HostOutputStream for HostState {
    fn check_write(&mut self, _: Resource<OutputStream>) -> Result<Result<u64, StreamError>> {
        self.admit(WasiCall::Io, 0)?;
        Ok(Ok(PERMIT))
    }

    fn write(&mut self, stream: Resource<OutputStream>, bytes: Vec<u8>) -> Result<Result<(), StreamError>> {
        Self::write(self, &stream, &bytes)
    }

    fn blocking_write_and_flush(
        &mut self,
        stream: Resource<OutputStream>,
        bytes: Vec<u8>,
    ) -> Result<Result<(), StreamError>> {
        Self::write(self, &stream, &bytes)
    }

    fn flush(&mut self, _: Resource<OutputStream>) -> Result<Result<(), StreamError>> {
        self.done()
    }

    fn blocking_flush(&mut self, _: Resource<OutputStream>) -> Result<Result<(), StreamError>> {
        self.done()
    }

    fn subscribe(&mut self, _: Resource<OutputStream>) -> Result<Resource<Pollable>> {
        self.always_ready()
    }

    /// Zeroes are not text. They are dropped.
    fn write_zeroes(&mut self, _: Resource<OutputStream>, _: u64) -> Result<Result<(), StreamError>> {
        self.done()
    }

    fn blocking_write_zeroes_and_flush(
        &mut self,
        _: Resource<OutputStream>,
        _: u64,
    ) -> Result<Result<(), StreamError>> {
        self.done()
    }

    fn splice(
        &mut self,
        _: Resource<OutputStream>,
        _: Resource<InputStream>,
        _: u64,
    ) -> Result<Result<u64, StreamError>> {
        self.at_the_end()
    }

    fn blocking_splice(
        &mut self,
        _: Resource<OutputStream>,
        _: Resource<InputStream>,
        _: u64,
    ) -> Result<Result<u64, StreamError>> {
        self.at_the_end()
    }

    fn drop(&mut self, _: Resource<OutputStream>) -> Result<()> {
        self.drop_handle();
        Ok(())
    }
}
