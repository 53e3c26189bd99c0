//! Messages in the byte stream of a database connection. JSON-RPC over a stream has no lengths and no delimiters (RFC 7047, 4): a message
//! ends with the brace that closes it.

use lasthop_runtime::fault::Fault;

/// The longest message in bytes. The first message after a connect has the whole database; that of a host with OVN has some MiB.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Bytes of a stream, cut into messages.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// Bytes that were looked at.
    seen: usize,
    depth: u32,
    is_in_string: bool,
    is_after_backslash: bool,
}

impl Frames {
    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, without the white space around it.
    ///
    /// # Errors
    /// If the bytes cannot be JSON-RPC, or a message is too long.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        while let Some(&byte) = self.bytes.get(self.seen) {
            self.seen += 1;
            if self.depth == 0 && byte.is_ascii_whitespace() {
                self.bytes.drain(..self.seen);
                self.seen = 0;
                continue;
            }
            if self.depth == 0 && byte != b'{' {
                return Err(Fault::params(format!("byte {byte:#04x} begins no message of the database")));
            }
            if self.ends_message(byte) {
                let rest = self.bytes.split_off(self.seen);
                self.seen = 0;
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
        }
        if self.bytes.len() > MESSAGE_BYTES_MAX {
            let bound = MESSAGE_BYTES_MAX >> 20;
            return Err(Fault::params(format!("a message of the database is longer than {bound} MiB")));
        }
        Ok(None)
    }

    /// Whether `byte` closes the message.
    fn ends_message(&mut self, byte: u8) -> bool {
        if self.is_in_string {
            self.is_in_string = self.is_after_backslash || byte != b'"';
            self.is_after_backslash = byte == b'\\' && !self.is_after_backslash;
            return false;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(stream: &[u8], cuts: &[usize]) -> Vec<String> {
        let (mut frames, mut found, mut at) = (Frames::default(), Vec::new(), 0);
        for end in cuts.iter().copied().chain([stream.len()]) {
            frames.push(&stream[at..end.max(at)]);
            at = end.max(at);
            while let Some(message) = frames.next().expect("JSON-RPC") {
                found.push(String::from_utf8(message).expect("UTF-8"));
            }
        }
        found
    }

    fn text() -> impl Strategy<Value = String> {
        // Quotes, backslashes and braces are the letters that could mislead.
        "[a-z\"\\\\{}\\[\\] é]{0,12}"
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_the_stream_is_split(
            texts in prop::collection::vec((text(), text()), 1..5),
            mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let messages: Vec<String> = texts
                .iter()
                .map(|(key, value)| serde_json::json!({key: [value, {"n": [[], {}, value]}]}).to_string())
                .collect();
            let stream = messages.join(" \n");
            let mut places: Vec<usize> = cuts.drain(..).map(|cut| cut.index(stream.len() + 1)).collect();
            places.sort_unstable();
            prop_assert_eq!(cut(stream.as_bytes(), &places), messages);
        }
    }

    #[test]
    fn bytes_that_are_no_messages_are_refused() {
        for stream in ["[]", "x", "}", "1 {}"] {
            let mut frames = Frames::default();
            frames.push(stream.as_bytes());
            assert!(frames.next().is_err(), "{stream}");
        }
    }

    #[test]
    fn a_message_is_bounded() {
        let mut frames = Frames::default();
        frames.push(b"{\"");
        frames.push(&vec![b'a'; MESSAGE_BYTES_MAX]);
        assert!(frames.next().expect_err("too long").message.contains("64 MiB"));
    }
}
