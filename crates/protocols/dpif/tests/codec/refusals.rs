//! Refused requests, and their error numbers.

use lasthop_dpif::attr::{Attrs, Writer};
use lasthop_dpif::{Errno, Refusal, action, key};
use lasthop_flow::Match;

fn written(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    fill(&mut writer);
    writer.finish().expect("nothing is too long")
}

fn key_errno(fill: impl FnOnce(&mut Writer)) -> Option<Errno> {
    key::decode(Attrs::new(&written(fill))).err().map(|refusal| refusal.errno)
}

fn action_error(fill: impl FnOnce(&mut Writer)) -> Option<Refusal> {
    action::decode(&written(fill)).err()
}

#[test]
fn keys_with_attributes_that_the_kernel_does_not_take() {
    assert_eq!(key_errno(|key| key.put(0, &[0; 4])), Some(Errno::EINVAL), "type 0");
    assert_eq!(key_errno(|key| key.put(29, &[0; 4])), Some(Errno::EINVAL), "packet type");
    assert_eq!(key_errno(|key| key.put(30, &[0; 8])), Some(Errno::EINVAL), "ND extensions");
    assert_eq!(key_errno(|key| key.put(3, &[0; 5])), Some(Errno::EINVAL), "length");
    let twice = |key: &mut Writer| (0..2).for_each(|_| key.put(3, &[0; 4]));
    assert_eq!(key_errno(twice), Some(Errno::EINVAL));
    assert_eq!(key_errno(|key| key.put(3, &[0; 4])), None);
}

#[test]
fn tags_that_are_none() {
    let without_encap = |key: &mut Writer| {
        key.put(6, &[0x81, 0]);
        key.put(5, &[0x10, 5]);
    };
    assert_eq!(key_errno(without_encap), Some(Errno::EINVAL));
    let without_tpid = |key: &mut Writer| {
        key.put(6, &[8, 0]);
        key.put(5, &[0x10, 5]);
        key.put(1, &[]);
    };
    assert_eq!(key_errno(without_tpid), Some(Errno::EINVAL));
    fn nested(key: &mut Writer, depth: usize) {
        if depth > 0 {
            key.put(6, &[0x81, 0]);
            key.put(5, &[0x10, 5]);
            key.nest(1, |key| nested(key, depth - 1));
        }
    }
    assert_eq!(key_errno(|key| nested(key, 2)), None);
    assert_eq!(key_errno(|key| nested(key, 3)), Some(Errno::EINVAL), "what QinQ's depth is found out by");
}

#[test]
fn a_tag_of_which_a_mask_looks_at_nothing_has_to_be_there() {
    let tagged = |tpid: u16, tci: u16| {
        written(|key| {
            key.put(4, &[0; 12]);
            key.put(6, &tpid.to_be_bytes());
            key.put(5, &tci.to_be_bytes());
            key.nest(1, |key| key.put(6, &[0x88, 0xb5]));
        })
    };
    let found = |tpid, tci| {
        let (key, mask) = (tagged(0x8100, 0x1005), tagged(tpid, tci));
        let key = key::decode(Attrs::new(&key)).expect("a key");
        let mask = key::decode_mask(Attrs::new(&mask), &key).expect("a mask");
        let tci = mask.vlans[0].tci;
        Match { key, mask: Some(mask) }.check().map(|()| tci).ok()
    };
    assert_eq!(found(0xffff, 0), Some(0x1000));
    assert_eq!(found(0xffff, 0x1ffe), Some(0x1ffe));
    assert_eq!(found(0xffff, 0x0fff), None, "neither there nor not");
    assert_eq!(found(0, 0), None);
}

#[test]
fn label_stacks_of_up_to_three() {
    assert_eq!(key_errno(|key| key.put(21, &[0; 12])), None);
    for len in [0, 3, 16] {
        assert_eq!(key_errno(|key| key.put(21, &vec![0; len])), Some(Errno::EINVAL), "{len} bytes");
    }
}

#[test]
fn actions_that_the_kernel_does_not_have() {
    assert_eq!(action_error(|list| list.put(24, &[0; 4])), None, "Linux 6.8 has drop");
    for kind in [0, 23, 25, 26, 99] {
        let refusal = action_error(|list| list.put(kind, &[0; 4])).expect("refused");
        assert_eq!(refusal.errno, Errno::EINVAL, "type {kind}");
    }
}

#[test]
fn actions_that_make_no_sense() {
    let errno = |fill: &dyn Fn(&mut Writer)| action_error(|list| fill(list)).map(|refusal| refusal.errno);
    assert_eq!(errno(&|list| list.put(1, &65_536_u32.to_ne_bytes())), Some(Errno::EINVAL), "a port beyond");
    assert_eq!(
        errno(&|list| list.put(13, &13_u32.to_ne_bytes())),
        Some(Errno::EINVAL),
        "truncated to nothing"
    );
    assert_eq!(errno(&|list| list.put(4, &[0x81, 0, 0, 5])), Some(Errno::EINVAL), "a tag that is not there");
    assert_eq!(errno(&|list| list.put(8, &[2, 0, 0, 0, 0, 0, 0, 0])), Some(Errno::EINVAL), "a third hash");
    assert_eq!(
        errno(&|list| list.nest(11, |set| set.put(30, &[0; 16]))),
        Some(Errno::EINVAL),
        "ND extensions"
    );
    assert_eq!(
        errno(&|list| list.nest(11, |set| set.put(9, &[0, 1, 0, 0, 0, 0, 0, 0]))),
        Some(Errno::EINVAL),
        "beyond the mask"
    );
    assert_eq!(
        errno(&|list| list.nest(6, |sample| sample.put(1, &[0; 4]))),
        Some(Errno::EINVAL),
        "a sample of nothing"
    );
}

#[test]
fn lists_nested_too_deeply_or_too_long() {
    fn nested(list: &mut Writer, depth: usize) {
        if depth > 0 {
            list.nest(20, |inner| nested(inner, depth - 1));
        }
    }
    assert_eq!(action_error(|list| nested(list, 15)), None);
    assert_eq!(action_error(|list| nested(list, 16)).map(|refusal| refusal.errno), Some(Errno::EOVERFLOW));
    let long = |list: &mut Writer| (0..4097).for_each(|_| list.put(1, &[0; 4]));
    assert_eq!(action_error(long).map(|refusal| refusal.errno), Some(Errno::EMSGSIZE));
}

#[test]
fn a_tunnel_of_a_bridge_is_a_flag() {
    let read =
        key::decode(Attrs::new(&written(|key| key.nest(16, |tunnel| tunnel.put(16, &[]))))).expect("known");
    let tunnel = read.tunnel.clone().expect("there");
    assert!(tunnel.is_info_bridge);
    let again = key::decode(Attrs::new(&written(|writer| key::encode(writer, &read))));
    assert_eq!(again, Ok(read));
}
