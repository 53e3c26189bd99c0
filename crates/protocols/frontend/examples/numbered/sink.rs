//! The end of a TCP connection that receives a file repeatedly.

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use crate::tally::{Clock, Tally};

const READ_BYTES: usize = 1 << 16;

#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) port: u16,
    pub(crate) file: Vec<u8>,
    pub(crate) tally: Arc<Tally>,
}

impl Sink {
    /// Serves one connection after the other.
    pub(crate) fn run(&self) -> io::Result<()> {
        let listener = TcpListener::bind(("0.0.0.0", self.port))?;
        loop {
            let (stream, _) = listener.accept()?;
            self.tally.connections.add(1);
            if let Err(why) = self.drain(stream) {
                crate::complain(&format!("port {}: {why}", self.port));
            }
            self.tally.ended.add(1);
        }
    }

    fn drain(&self, mut stream: TcpStream) -> io::Result<()> {
        let (mut bytes, mut at, mut clock) = (vec![0; READ_BYTES], 0, Clock::start());
        loop {
            let count = stream.read(&mut bytes)?;
            if count == 0 {
                return Ok(());
            }
            clock.tick(&self.tally);
            self.tally.heard.add(count as u64);
            if !self.compare(&bytes[..count], &mut at) {
                self.tally.damaged.add(1);
            }
        }
    }

    /// Whether these bytes are the next ones of the file, from `at` on.
    fn compare(&self, mut bytes: &[u8], at: &mut usize) -> bool {
        let mut is_same = true;
        while !bytes.is_empty() {
            let expected = &self.file[*at..];
            let count = bytes.len().min(expected.len());
            is_same &= bytes[..count] == expected[..count];
            *at = (*at + count) % self.file.len();
            bytes = &bytes[count..];
        }
        is_same
    }
}
