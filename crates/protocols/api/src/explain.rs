//! The fate of a packet that is not sent: the question, and the answer as JSON has it (docs/user/control-api.md).

use lasthop_runtime::fault::Fault;
use serde::{Deserialize, Serialize};

/// Bytes of a frame that are looked at; the switch itself looks at the first 128.
pub const EXPLAINED_BYTES_MAX: usize = 2048;
/// Longest frame that a switch takes, in bytes.
const FRAME_BYTES_MAX: u32 = 65_553;
/// Questions to the controller about one packet: it is asked again for each pass that follows from its last answer.
pub const EXPLAIN_ROUNDS_MAX: usize = 4;
/// Passes of a packet that the controller is asked about, in all.
pub const EXPLAIN_PASSES_MAX: usize = 64;

/// The parameters of the method `explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainSpec {
    /// The port that the frame would come in by.
    pub from: String,
    /// The frame's first bytes, from the destination address on, as hexadecimal digits.
    pub frame: String,
    /// Bytes of the whole frame; without it those that are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_bytes: Option<u32>,
}

impl ExplainSpec {
    /// The given bytes, and the length of the whole frame.
    pub fn frame(&self) -> Result<(Vec<u8>, u32), Fault> {
        let bytes = bytes_of(&self.frame).ok_or_else(|| {
            Fault::params(
                "the frame is no row of hexadecimal bytes; write it as in 0200000000020200000000010800",
            )
        })?;
        if bytes.len() > EXPLAINED_BYTES_MAX {
            let given = bytes.len();
            return Err(Fault::params(format!(
                "{given} bytes of the frame are more than are looked at; give the first {EXPLAINED_BYTES_MAX}, and its length as frame_bytes"
            )));
        }
        let len_bytes = self.frame_bytes.unwrap_or(bytes.len() as u32); // at most as above
        if (len_bytes as usize) < bytes.len() || len_bytes > FRAME_BYTES_MAX {
            return Err(Fault::params(format!(
                "the length of the frame, {len_bytes} bytes, must be that of the given bytes, or more, up to {FRAME_BYTES_MAX}"
            )));
        }
        Ok((bytes, len_bytes))
    }
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that hexadecimal digits stand for; none if they do not.
#[must_use]
pub fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// A reason of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainReason {
    /// Its subject, one word.
    pub about: String,
    /// A sentence without a full stop.
    pub text: String,
}

/// A flow that a packet meets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainFlow {
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ufid: Option<String>,
    /// Its match, as ovs-dpctl prints it.
    #[serde(rename = "match")]
    pub matching: String,
    /// Its actions, as ovs-dpctl prints them.
    pub actions: String,
    /// Other flows that match the packet, too: which one it meets is not certain.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// An event on a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ExplainStep {
    /// A reason of a decision.
    Reason(ExplainReason),
    /// It goes through the flow table.
    Pass {
        /// 1 for the first.
        number: usize,
        /// The fields that flows are looked up by, as ovs-dpctl prints them.
        key: String,
        /// Its flow; none: the control plane decides.
        flow: Option<ExplainFlow>,
        /// The actions that the embedded controller answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<String>,
    },
    /// Its connection is looked up.
    Connection {
        /// Zone.
        zone: u16,
        /// The packet's state then, as `ct_state` has it.
        state: String,
        /// The connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connection: Option<String>,
        /// Whether the table has it already.
        known: bool,
        /// Whether the action remembers it.
        commit: bool,
    },
    /// A meter is asked.
    Meter {
        /// Its number.
        meter: u32,
        /// Whether the packet passes now.
        passes: bool,
    },
    /// It leaves by a port.
    Output {
        /// The port.
        port: String,
        /// How it differs from the packet that came in.
        changes: Vec<String>,
        /// The tunnel that it goes into, as ovs-dpctl prints it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tunnel: Option<String>,
        /// Bytes of it at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        truncated_to: Option<u32>,
    },
    /// A copy of it is dropped, or a list of actions ends.
    Drop {
        /// By name.
        reason: String,
        /// In words.
        meaning: String,
    },
    /// Anything else, in words.
    Note {
        /// A sentence without a full stop.
        text: String,
    },
}

/// The end of a packet, or of one of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExplainFate {
    /// It gets to a port.
    Delivered,
    /// The control plane decides, and its answer is not known here.
    Asked,
    /// It waits for the other fragments of its packet.
    Held,
    /// It is dropped.
    Dropped,
}

/// One copy of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainCopy {
    /// Its end.
    pub fate: ExplainFate,
    /// The port that it is for, if it is for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The drop reason, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The fate of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainReport {
    /// The port that it comes in by.
    pub from: String,
    /// That port's switch; none if it is in none.
    pub switch: Option<String>,
    /// The module that decides.
    pub module: String,
    /// Bytes of the frame.
    pub frame_bytes: u32,
    /// The events, in order.
    pub steps: Vec<ExplainStep>,
    /// All copies.
    pub copies: Vec<ExplainCopy>,
    /// The end of the packet: the best one of its copies.
    pub fate: ExplainFate,
    /// The same in words.
    pub verdict: String,
    /// The command that tells more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// A pass of a packet that the embedded controller can tell more about: the key as netlink attributes, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsultedKey(pub String);

/// The embedded controller's answer about a packet that is not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consultation {
    /// The actions that it would answer, as netlink attributes in hexadecimal digits; none if it does not serve the port.
    pub actions: Option<String>,
    /// Why.
    pub reasons: Vec<ExplainReason>,
}

/// The switch process's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The answer as far as it goes.
    pub report: ExplainReport,
    /// Passes that the embedded controller of the switch can tell more about, in order.
    pub passes: Vec<ConsultedKey>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(frame: &str, frame_bytes: Option<u32>) -> ExplainSpec {
        ExplainSpec { from: "vm1".to_owned(), frame: frame.to_owned(), frame_bytes }
    }

    #[test]
    fn frames_are_hexadecimal_digits_and_no_longer_than_they_say() {
        assert_eq!(spec("0aFF", None).frame().expect("two bytes"), (vec![10, 255], 2));
        assert_eq!(spec("0aff", Some(60)).frame().expect("of more"), (vec![10, 255], 60));
        for (frame, len_bytes) in
            [("0", None), ("0x", None), ("é0", None), ("0aff", Some(1)), ("00", Some(1 << 17))]
        {
            assert!(spec(frame, len_bytes).frame().is_err(), "{frame} {len_bytes:?}");
        }
        assert!(spec(&"00".repeat(EXPLAINED_BYTES_MAX + 1), None).frame().is_err());
        assert_eq!(bytes_of(&hex_of(&[1, 0xfe])), Some(vec![1, 0xfe]));
    }
}
