//! Ports of transport protocols: one, a range, or several of these.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Ranges in one list.
const RANGES_MAX: usize = 32;

/// Ports from the first to the last one, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "NumberOrText", into = "NumberOrText")]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// `443`, `"8000-8080"`, or a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "OneOrMany", into = "OneOrMany")]
#[schemars(inline)]
pub struct PortRanges(Vec<PortRange>);

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(untagged, expecting = "a port, a range such as \"8000-8080\", or a list of these was expected")]
enum NumberOrText {
    Number(#[schemars(range(max = u16::MAX))] u32),
    Text(#[schemars(pattern(r"^[0-9]{1,5}(-[0-9]{1,5})?$"))] String),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(untagged, expecting = "a port, a range such as \"8000-8080\", or a list of these was expected")]
enum OneOrMany {
    One(NumberOrText),
    Many(Vec<NumberOrText>),
}

impl PortRanges {
    /// The ranges in the given order.
    pub fn iter(&self) -> impl Iterator<Item = PortRange> + '_ {
        self.0.iter().copied()
    }

    fn new(ranges: Vec<PortRange>) -> Result<Self, Fault> {
        if (1..=RANGES_MAX).contains(&ranges.len()) {
            return Ok(Self(ranges));
        }
        Err(Fault::params(format!("a rule has 1 to {RANGES_MAX} ranges of ports, and not {}", ranges.len())))
    }
}

fn refusal(text: &str) -> Fault {
    Fault::params(format!("\"{text}\" is no port from 0 to 65535, nor a range such as 8000-8080"))
}

impl FromStr for PortRange {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.parse::<u16>().ok();
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(refusal(text)),
        }
    }
}

impl FromStr for PortRanges {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        Self::new(text.split(',').map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl TryFrom<NumberOrText> for PortRange {
    type Error = Fault;

    fn try_from(given: NumberOrText) -> Result<Self, Fault> {
        match given {
            NumberOrText::Number(number) => {
                let port = u16::try_from(number).map_err(|_| refusal(&number.to_string()))?;
                Ok(Self { first: port, last: port })
            }
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl From<PortRange> for NumberOrText {
    fn from(range: PortRange) -> Self {
        if range.first == range.last {
            Self::Number(range.first.into())
        } else {
            Self::Text(range.to_string())
        }
    }
}

impl TryFrom<OneOrMany> for PortRanges {
    type Error = Fault;

    fn try_from(given: OneOrMany) -> Result<Self, Fault> {
        let given = match given {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        };
        Self::new(given.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?)
    }
}

impl From<PortRanges> for OneOrMany {
    fn from(PortRanges(ranges): PortRanges) -> Self {
        match ranges.as_slice() {
            [one] => Self::One((*one).into()),
            _ => Self::Many(ranges.into_iter().map(Into::into).collect()),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl fmt::Display for PortRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}
