//! Attributes of netlink messages (linux/netlink.h, `struct nlattr`): length, kind, value, padded to four bytes.

/// Length and kind.
const HEAD_BYTES: usize = 4;
/// A nested attribute's bit (`NLA_F_NESTED`).
pub(super) const NESTED: u16 = 0x8000;
/// The nested bit and the bit of network byte order (`NLA_F_NET_BYTEORDER`).
const KIND_FLAGS: u16 = NESTED | 0x4000;

/// Rounds up to four bytes.
pub(crate) fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// The complete attributes in `bytes`.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & !KIND_FLAGS;
        let value = bytes.get(HEAD_BYTES..len)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Adds an attribute to a message.
pub(crate) fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = (HEAD_BYTES + value.len()) as u16; // values here have 16 bytes at most
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(aligned(message.len()), 0);
}

/// A text attribute without its final NUL.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_are_found_behind_others_of_odd_lengths() {
        let mut bytes = Vec::new();
        put(&mut bytes, 3, b"eth1\0");
        put(&mut bytes, 1, &[2, 0, 0, 0, 0, 1]);
        put(&mut bytes, 4, &1500_u32.to_ne_bytes());
        put(&mut bytes, 7 | NESTED, &[1, 2, 3, 4]);
        assert_eq!(find(&bytes, 3).map(text), Some("eth1".to_owned()));
        assert_eq!(find(&bytes, 4), Some(1500_u32.to_ne_bytes().as_slice()));
        assert_eq!(find(&bytes, 7), Some([1, 2, 3, 4].as_slice()));
        assert_eq!(find(&bytes, 5), None);
        assert_eq!((bytes.len(), attributes(&bytes).count()), (40, 4));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(attributes(&bytes).count() <= bytes.len() / HEAD_BYTES);
        }
    }
}
