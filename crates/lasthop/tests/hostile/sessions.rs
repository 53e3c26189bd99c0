//! Incomplete messages, floods of messages, sessions without end.

use std::time::Duration;

use lasthop_vhost::message::{VhostMessage, request};

use lasthop_rig::guests::{TWO, frame};
use lasthop_rig::rogue::{Rogue, message_of_size};
use lasthop_rig::victims::Victims;
use lasthop_rig::{Switch, eventually, fds};

/// Waits until the log says that the bad guest has gone, because of `why`.
fn await_end(switch: &Switch, why: &str) {
    let line = "port bad: its guest is gone";
    eventually("the end", || switch.log().contains(line).then_some(()));
    let log = switch.log();
    assert!(log.lines().filter(|it| it.contains(line)).all(|it| it.contains(why)), "{why}: {log}");
}

#[test]
fn half_a_message_holds_up_nobody() {
    let mut victims = Victims::beside(&["bad"]);
    let rogue = Rogue::connect(&victims.switch, "bad");
    let half = VhostMessage::new(request::SET_MEM_TABLE, vec![0; 40]).encode();
    rogue.send_bytes(&half[..30], &[]).expect("written");
    eventually("it is there", || (victims.switch.port("bad")["state"] == "connected").then_some(()));
    victims.talk(20);
    let shown = victims.switch.ask(&["vnic", "show", "bad"]).ok();
    assert!(shown.contains("state         connected"), "{shown}");
    drop(rogue);
    await_end(&victims.switch, "");
    victims.assert_free("bad");
    victims.assert_unharmed();
}

#[test]
fn a_flood_of_messages_holds_up_nobody_and_unread_answers_end_it() {
    let mut victims = Victims::beside(&["bad"]);
    let mut rogue = Rogue::connect(&victims.switch, "bad");
    let flood = VhostMessage::new(request::GET_FEATURES, Vec::new()).encode().repeat(100);
    for _ in 0..50 {
        rogue.send_bytes(&flood, &[]).expect("written");
        (0..100).for_each(|_| drop(rogue.answer().expect("each is answered")));
    }
    victims.talk(20);
    // The reply is as long as the request: 256 bytes, of 268 with the range.
    let range = [0, 256, 0_u32].map(u32::to_ne_bytes).concat();
    let greedy = message_of_size(request::GET_CONFIG, 268, &[range, vec![0; 256]].concat());
    rogue.set_patience(Duration::from_secs(1));
    while rogue.send_bytes(&greedy, &[]).is_ok() {}
    await_end(&victims.switch, "replies wait to be read");
    victims.assert_free("bad");
    victims.assert_unharmed();
}

#[test]
fn sessions_without_end_hold_up_nobody() {
    let mut victims = Victims::beside(&["bad"]);
    for round in 0..50 {
        let rogue = Rogue::connect(&victims.switch, "bad");
        if round % 2 == 0 {
            // While one is served and the next one waits, a third one is refused.
            let _ = rogue.send(request::GET_FEATURES, &[], &[]);
        }
        drop(rogue);
        if round % 10 == 0 {
            victims.talk(20);
        }
    }
    victims.assert_free("bad");
    victims.assert_unharmed();
    let open = fds(victims.switch.pid());
    assert!(open < 64, "{open} descriptors");
}

#[test]
fn a_message_one_byte_at_a_time_is_one_like_any_other() {
    let mut victims = Victims::beside(&["bad"]);
    let mut rogue = Rogue::connect(&victims.switch, "bad");
    rogue.negotiate();
    for _ in 0..5 {
        let asked = VhostMessage::new(request::GET_FEATURES, Vec::new());
        rogue.send_in_pieces(&asked, 1, &[]).expect("written");
        victims.talk(2);
        assert_eq!(rogue.answer().expect("answered").request, request::GET_FEATURES);
    }
    drop(rogue);
    victims.assert_free("bad");
    victims.assert_unharmed();
}

#[test]
fn features_that_change_without_end_harm_nobody_and_an_upgrade_goes_by() {
    let mut victims = Victims::beside(&["bad"]);
    let (mut rogue, mut desk) = Rogue::attach(&victims.switch, "bad", 1);
    for number in 0..10 {
        assert!(desk.send(0, &frame(TWO, [2, 0, 0, 0, 0, 9], number, 60)), "there is room");
        rogue.toggle_features(20).expect("written");
        rogue.await_turn();
        victims.talk(5);
        victims.talk_anew(2);
    }
    victims.upgrade();
    drop(rogue);
    victims.assert_free("bad");
    victims.assert_unharmed();
}
