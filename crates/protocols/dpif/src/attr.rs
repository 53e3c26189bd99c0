//! Netlink attributes: length, type, payload, padded to four bytes.
//!
//! ```text
//!    0       2       4                       4 + n   next multiple of 4
//!    | len   | type  | payload, n bytes      | 0 .. |
//!    len = 4 + n; the two highest bits of the type are flags, which are ignored
//! ```

use crate::refusal::{Errno, Refusal};

/// Bytes in front of a payload.
pub const HEADER_BYTES: usize = 4;
/// Bits of a type without its flags, "nested" and "network byte order", which the kernel ignores, too.
const TYPE_MASK: u16 = 0x3fff;
/// Bytes of the longest attribute of fixed length that is written at once: more than any group of fields has.
const FIXED_BYTES: usize = 64;

/// One attribute of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Type, without flags.
    pub kind: u16,
    /// Its payload.
    pub payload: &'a [u8],
}

impl<'a> Attr<'a> {
    /// The payload, which must have exactly `N` bytes.
    ///
    /// # Errors
    /// ERANGE, as the kernel has it for payloads of another length.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Refusal> {
        self.payload
            .try_into()
            .map_err(|_| Refusal::new(Errno::ERANGE, "an attribute does not have the length of its type"))
    }

    /// Reads an 8-bit number.
    ///
    /// # Errors
    /// As [`Attr::array`].
    pub fn u8(&self) -> Result<u8, Refusal> {
        self.array().map(u8::from_ne_bytes)
    }

    /// Reads a 16-bit number in the host's byte order.
    ///
    /// # Errors
    /// As [`Attr::array`].
    pub fn u16(&self) -> Result<u16, Refusal> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Reads a 32-bit number in the host's byte order.
    ///
    /// # Errors
    /// As [`Attr::array`].
    pub fn u32(&self) -> Result<u32, Refusal> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Reads a 64-bit number in the host's byte order.
    ///
    /// # Errors
    /// As [`Attr::array`].
    pub fn u64(&self) -> Result<u64, Refusal> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Reads a string of at most `len_max` bytes, with or without a final NUL.
    ///
    /// # Errors
    /// ERANGE when it is longer, EINVAL when it is empty or no text.
    pub fn string(&self, len_max: usize) -> Result<String, Refusal> {
        let bytes = self.payload.strip_suffix(&[0]).unwrap_or(self.payload);
        if bytes.len() > len_max {
            return Err(Refusal::new(Errno::ERANGE, "a name is longer than names may be"));
        }
        let text = std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty() && !text.contains('\0'));
        text.map(str::to_owned).ok_or(Refusal::invalid("a name is empty or no text"))
    }

    /// The attributes nested in it.
    #[must_use]
    pub fn nested(&self) -> Attrs<'a> {
        Attrs::new(self.payload)
    }
}

/// Iterates over attributes; ends after the first error.
#[derive(Clone, Debug)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Starts at the first byte of an attribute.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    fn take(&mut self) -> Result<Attr<'a>, Refusal> {
        let wrong = Refusal::invalid(
            "an attribute is longer than the message around it, or shorter than its own header",
        );
        let rest = std::mem::take(&mut self.rest);
        let (header, _) = rest.split_first_chunk::<HEADER_BYTES>().ok_or(wrong)?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let payload = rest.get(HEADER_BYTES..len).ok_or(wrong)?;
        // The last one may lack its padding (OVS_DP_F_UNALIGNED).
        self.rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Ok(Attr { kind: u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK, payload })
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Result<Attr<'a>, Refusal>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}

/// Writes attributes. A payload whose length exceeds 16 bits makes [`Writer::finish`] fail.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl Writer {
    /// Appends to `bytes`.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, is_too_long: false }
    }

    /// Number of bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds bytes of a header.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds an attribute.
    pub fn put(&mut self, kind: u16, payload: &[u8]) {
        let Ok(len) = u16::try_from(HEADER_BYTES + payload.len()) else {
            self.is_too_long = true;
            return;
        };
        let ([a, b], [c, d]) = (len.to_ne_bytes(), kind.to_ne_bytes());
        self.bytes.reserve(usize::from(len).next_multiple_of(4));
        self.bytes.extend_from_slice(&[a, b, c, d]);
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// As [`Writer::put`], for a payload whose length is a constant: then it is a few stores, and most attributes are
    /// so.
    #[inline(always)]
    pub(crate) fn put_fixed(&mut self, kind: u16, payload: &[u8]) {
        let mut attr = [0; FIXED_BYTES];
        let len = HEADER_BYTES + payload.len();
        if let (Some(place), Ok(len_bytes)) = (attr.get_mut(HEADER_BYTES..len), u16::try_from(len)) {
            place.copy_from_slice(payload);
            attr[..2].copy_from_slice(&len_bytes.to_ne_bytes());
            attr[2..HEADER_BYTES].copy_from_slice(&kind.to_ne_bytes());
            self.bytes.extend_from_slice(&attr[..len.next_multiple_of(4)]);
        } else {
            self.put(kind, payload);
        }
    }

    /// Adds an attribute, if there is a payload for it.
    #[inline]
    pub fn put_some<const N: usize>(&mut self, kind: u16, payload: Option<[u8; N]>) {
        if let Some(payload) = payload {
            self.put_fixed(kind, &payload);
        }
    }

    /// Adds a string with its final NUL.
    pub fn put_string(&mut self, kind: u16, text: &str) {
        self.nest(kind, |nested| {
            nested.raw(text.as_bytes());
            nested.raw(&[0]);
        });
    }

    /// Adds an attribute without payload, if `is_set`.
    pub fn put_flag(&mut self, kind: u16, is_set: bool) {
        if is_set {
            self.put(kind, &[]);
        }
    }

    /// Adds an attribute with nested ones.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        fill(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            self.is_too_long = true;
            0
        });
        let [a, b] = len.to_ne_bytes();
        let [c, d] = kind.to_ne_bytes();
        if let Some(header) = self.bytes.get_mut(start..start + HEADER_BYTES) {
            header.copy_from_slice(&[a, b, c, d]);
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns all bytes.
    ///
    /// # Errors
    /// EMSGSIZE if an attribute is longer than 65535 bytes.
    pub fn finish(self) -> Result<Vec<u8>, Refusal> {
        let (bytes, result) = self.into_parts();
        result.map(|()| bytes)
    }

    /// Returns all bytes, and whether all attributes are whole.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Result<(), Refusal>) {
        let too_long = Refusal::new(Errno::EMSGSIZE, "an attribute is longer than 65535 bytes");
        (self.bytes, if self.is_too_long { Err(too_long) } else { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_beyond_the_end_is_refused_and_ends_the_list() {
        let mut attrs = Attrs::new(&[5, 0, 1, 0, 7, 0, 0, 0, 9, 0, 2, 0, 1]);
        assert_eq!(attrs.next(), Some(Ok(Attr { kind: 1, payload: &[7] })));
        assert!(attrs.next().is_some_and(|attr| attr.is_err()));
        assert_eq!(attrs.next(), None);
        assert!(Attrs::new(&[3, 0, 1, 0]).next().is_some_and(|attr| attr.is_err()));
        assert!(Attrs::new(&[4, 0, 1]).next().is_some_and(|attr| attr.is_err()));
    }

    #[test]
    fn flags_of_a_type_are_not_the_type_and_the_last_padding_may_be_absent() {
        let mut attrs = Attrs::new(&[5, 0, 1, 0x80, 7]);
        assert_eq!(attrs.next(), Some(Ok(Attr { kind: 1, payload: &[7] })));
        assert_eq!(attrs.next(), None);
    }

    #[test]
    fn a_payload_too_long_fails_at_the_end() {
        let mut writer = Writer::default();
        writer.put(1, &vec![0; 65_536]);
        assert_eq!(writer.finish().map_err(|refusal| refusal.errno), Err(Errno::EMSGSIZE));
    }

    proptest! {
        #[test]
        fn attributes_come_back(list in prop::collection::vec((0..TYPE_MASK, prop::collection::vec(any::<u8>(), 0..40)), 0..9)) {
            let mut writer = Writer::default();
            writer.nest(9, |nested| list.iter().for_each(|(kind, payload)| nested.put(*kind, payload)));
            let bytes = writer.finish().expect("short");
            let outer = Attrs::new(&bytes).next().expect("one").expect("whole");
            let back: Vec<_> = outer.nested().map(|attr| attr.map(|attr| (attr.kind, attr.payload.to_vec()))).collect();
            prop_assert_eq!(back, list.into_iter().map(Ok).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Attrs::new(&bytes).count() <= 16);
        }
    }
}
