//! Detects that the embedded controller does not answer upcalls any more.
//!
//! A controller that hangs or was stopped would get upcalls for ever, since its connections still work. The supervisor
//! finds the cause; this code only detects the missing answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_dpif::server::{PeerId, Reader};

/// Longest time without a message from the controller after an upcall. It answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time of the first unanswered upcall, and the number of bytes received until then.
#[derive(Clone, Copy, Debug)]
struct Asked {
    since: Instant,
    heard: u64,
}

/// The connections of the embedded controller.
#[derive(Debug, Default)]
pub(super) struct ControllerSilence {
    own: BTreeMap<PeerId, Option<Asked>>,
}

impl ControllerSilence {
    /// Adds a connection of the controller.
    pub(super) fn watch(&mut self, client: PeerId) {
        self.own.insert(client, None);
    }

    /// Removes a client that is gone.
    pub(super) fn forget(&mut self, client: PeerId) {
        self.own.remove(&client);
    }

    /// Notes an upcall to a client.
    pub(super) fn asked(&mut self, Reader { client, heard, .. }: Reader) {
        if let Some(asked) = self.own.get_mut(&client) {
            asked.get_or_insert_with(|| Asked { since: Instant::now(), heard });
        }
    }

    /// Whether the controller has been silent for too long since an upcall; true once for each such time.
    pub(super) fn is_silent(&mut self, reader: impl Fn(PeerId) -> Option<Reader>, now: Instant) -> bool {
        let mut is_silent = false;
        for (client, asked) in &mut self.own {
            let heard = reader(*client).map(|reader| reader.heard);
            asked.take_if(|asked| Some(asked.heard) != heard);
            if let Some(asked) = asked.as_mut().filter(|asked| now >= asked.since + PATIENCE) {
                (asked.since, is_silent) = (now, true);
            }
        }
        is_silent
    }

    /// The time at which that may become true.
    pub(super) fn due(&self) -> Option<Instant> {
        self.own.values().flatten().map(|asked| asked.since + PATIENCE).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: PeerId = PeerId(1);

    fn reader(heard: u64) -> impl Fn(PeerId) -> Option<Reader> {
        move |client| Some(Reader { client, is_busy: false, taken: 0, heard })
    }

    fn asked(heard: u64) -> (ControllerSilence, Instant) {
        let mut silence = ControllerSilence::default();
        silence.watch(OWN);
        assert!(!silence.is_silent(|_| None, Instant::now()), "it has not said who it is");
        assert!(silence.due().is_none());
        silence.asked(reader(heard)(OWN).expect("there"));
        let due = silence.due().expect("it was asked");
        (silence, due)
    }

    #[test]
    fn who_is_asked_and_says_nothing_is_noticed_once_for_each_patience() {
        let (mut silence, due) = asked(5);
        assert!(!silence.is_silent(reader(5), due - PATIENCE / 2));
        assert!(silence.is_silent(reader(5), due));
        assert!(!silence.is_silent(reader(5), due));
        assert!(silence.is_silent(reader(5), due + PATIENCE));
    }

    #[test]
    fn who_says_anything_is_not_and_nor_is_who_was_not_asked_or_is_gone() {
        let (mut silence, due) = asked(5);
        assert!(!silence.is_silent(reader(6), due) && silence.due().is_none());
        assert!(!silence.is_silent(reader(6), due + 2 * PATIENCE));
        let (mut silence, due) = asked(5);
        silence.forget(OWN);
        assert!(!silence.is_silent(reader(5), due) && silence.due().is_none());
        let mut others = ControllerSilence::default();
        others.asked(reader(0)(PeerId(2)).expect("there"));
        assert!(others.due().is_none(), "somebody else's controller is none of ours");
    }
}
