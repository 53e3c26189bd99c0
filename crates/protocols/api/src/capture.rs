//! The frames that a capture records, and its limits.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Largest snap length, in bytes: tcpdump's, which is more than the longest frame.
const SNAP_BYTES_MAX: u32 = 262_144;

/// An event of a frame at a vnic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CaptureEvent {
    /// The switch received it from the guest
    In,
    /// The switch gave it to the guest
    Out,
    /// It came from the guest or was on its way to it, and was dropped
    Drop,
}

/// The parameters of the method `capture`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureSpec {
    /// Vnics; empty for all.
    #[serde(default)]
    pub names: Vec<String>,
    /// The events to record; empty for all.
    #[serde(default)]
    pub directions: Vec<CaptureEvent>,
    /// Largest number of bytes of each frame.
    #[serde(default)]
    pub snaplen: Option<u32>,
    /// Number of frames after which it ends.
    #[serde(default)]
    pub count: Option<u64>,
    /// Number of seconds after which it ends.
    #[serde(default)]
    pub duration_s: Option<u64>,
}

impl CaptureSpec {
    /// Checks the numbers.
    pub fn check(&self) -> Result<(), Fault> {
        if self.snaplen.is_some_and(|bytes| bytes == 0 || bytes > SNAP_BYTES_MAX) {
            return Err(Fault::params(format!("the snap length must be 1 to {SNAP_BYTES_MAX} bytes")));
        }
        if self.count == Some(0) {
            return Err(Fault::params(
                "the count must be 1 or more; without one a capture lasts until it is ended",
            ));
        }
        if self.duration_s == Some(0) {
            return Err(Fault::params(
                "the duration must be 1 second or more; without one a capture lasts until it is ended",
            ));
        }
        Ok(())
    }

    /// Whether this kind of event is recorded.
    pub fn wants(&self, sighting: CaptureEvent) -> bool {
        self.directions.is_empty() || self.directions.contains(&sighting)
    }

    pub fn snap_len_bytes(&self) -> u32 {
        self.snaplen.unwrap_or(SNAP_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_are_checked_and_have_defaults() {
        let spec: CaptureSpec = serde_json::from_value(json!({"directions": ["drop"]})).expect("valid");
        assert_eq!((spec.wants(CaptureEvent::Drop), spec.wants(CaptureEvent::In)), (true, false));
        assert_eq!((spec.snap_len_bytes(), spec.check()), (SNAP_BYTES_MAX, Ok(())));
        assert!(CaptureSpec::default().wants(CaptureEvent::In));
        for bad in [
            json!({"snaplen": 0}),
            json!({"snaplen": 262_145}),
            json!({"count": 0}),
            json!({"duration_s": 0}),
        ] {
            let spec: CaptureSpec = serde_json::from_value(bad).expect("known keys");
            assert!(spec.check().is_err(), "{spec:?}");
        }
        assert!(serde_json::from_value::<CaptureSpec>(json!({"directions": ["up"]})).is_err());
    }
}
