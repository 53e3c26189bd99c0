//! Counters of frames, and the equation that they conserve.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Frames and their bytes, virtio-net headers not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCount {
    /// Frames; a GSO frame counts once.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

impl FrameCount {
    /// Counts one frame.
    #[inline]
    pub fn count(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

impl AddAssign for FrameCount {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

/// Why the driver dropped a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceDropReason {
    /// From the device: longer than the longest frame there can be.
    Truncated,
    /// From the device: its offloads cannot be expressed in a virtio-net header, or are invalid.
    BadOffload,
    /// From the device: it waited there while no switch was attached.
    NoSwitch,
    /// To the device: it is gone, or down.
    DeviceDown,
    /// To the device: its queue was full.
    DeviceFull,
    /// To the device: longer than the device's MTU, or than the path of its tunnel takes.
    TooLong,
    /// To the device: the kernel refused it for another reason.
    Refused,
    /// From the device: a datagram whose tunnel header is not of the port's kind, or has options that are broken or too long.
    BadTunnel,
    /// To the device: no action of its flow set the tunnel that it is to go into.
    NoTunnel,
    /// To the device: it cannot be cut into datagrams, or its checksum not be completed, as its virtio-net header asks. The switch checks
    /// headers, but leaves the number of segments to their receiver.
    BadGso,
}

impl DeviceDropReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Truncated,
        Self::BadOffload,
        Self::NoSwitch,
        Self::DeviceDown,
        Self::DeviceFull,
        Self::TooLong,
        Self::Refused,
        Self::BadTunnel,
        Self::NoTunnel,
        Self::BadGso,
    ];

    /// The name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadOffload => "bad_offload",
            Self::NoSwitch => "no_switch",
            Self::DeviceDown => "device_down",
            Self::DeviceFull => "device_full",
            Self::TooLong => "too_long",
            Self::Refused => "refused",
            Self::BadTunnel => "bad_tunnel_header",
            Self::NoTunnel => "no_tunnel",
            Self::BadGso => "bad_gso",
        }
    }

    /// Whether it is for frames that come from the device.
    #[must_use]
    pub fn is_inbound(self) -> bool {
        matches!(self, Self::Truncated | Self::BadOffload | Self::NoSwitch | Self::BadTunnel)
    }
}

/// Counters of frames, of one queue or of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCounters {
    /// Taken from the device.
    pub from_device: FrameCount,
    /// Of these, and of answers, put into the transmit ring towards the switch.
    pub to_switch: FrameCount,
    /// Datagrams whose frames became the rest of a large frame, which counts once as put into the ring.
    #[serde(default)]
    pub joined: u64,
    /// ICMP errors made for packets that are too long for the path of their tunnel, and put into the ring as if received.
    #[serde(default)]
    pub answers: u64,
    /// Packets that would have been answered so, but for a limit, or without a known address of the host.
    #[serde(default)]
    pub withheld: u64,
    /// Taken from the receive ring, where the switch puts them.
    pub from_switch: FrameCount,
    /// Datagrams that large frames of these were cut into, but the first of each.
    #[serde(default)]
    pub cut: u64,
    /// Of these, given to the device.
    pub to_device: FrameCount,
    /// Frames that the kernel dropped because they were not read in time. Of tunnels: messages of one or more
    /// datagrams, also those that were damaged or that the host's IPsec refused.
    pub missed: u64,
    /// Dropped frames by [`DeviceDropReason`].
    pub drops: [u64; DeviceDropReason::ALL.len()],
    /// Frames taken from the receive ring that wait until the device has room.
    pub waiting: u64,
}

impl DriverCounters {
    /// Counts a dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: DeviceDropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Frames dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DeviceDropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Whether every frame is where the counters say.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        let sum = |inbound: bool| -> u64 {
            let reasons = DeviceDropReason::ALL.into_iter().filter(|reason| reason.is_inbound() == inbound);
            reasons.map(|reason| self.dropped(reason)).sum()
        };
        self.from_device.frames + self.answers == self.to_switch.frames + self.joined + sum(true)
            && self.from_switch.frames + self.cut == self.to_device.frames + sum(false) + self.waiting
    }
}

impl AddAssign for DriverCounters {
    fn add_assign(&mut self, other: Self) {
        self.from_device += other.from_device;
        self.to_switch += other.to_switch;
        self.joined += other.joined;
        self.answers += other.answers;
        self.withheld += other.withheld;
        self.from_switch += other.from_switch;
        self.cut += other.cut;
        self.to_device += other.to_device;
        self.missed += other.missed;
        for (sum, more) in self.drops.iter_mut().zip(other.drops) {
            *sum += more;
        }
        self.waiting += other.waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_listed_and_named_once() {
        for (number, reason) in DeviceDropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            let same = DeviceDropReason::ALL.into_iter().filter(|other| other.name() == reason.name());
            assert_eq!(same.count(), 1, "{}", reason.name());
        }
    }

    #[test]
    fn a_frame_that_is_nowhere_is_noticed() {
        let mut counters = DriverCounters::default();
        counters.from_device.count(60);
        assert!(!counters.is_conserved());
        counters.drop(DeviceDropReason::Truncated);
        assert!(counters.is_conserved());
        counters.from_device.count(60);
        assert!(!counters.is_conserved());
        counters.joined += 1;
        assert!(counters.is_conserved());
        counters.answers += 1;
        assert!(!counters.is_conserved());
        counters.to_switch.count(60);
        assert!(counters.is_conserved());
        counters.from_switch.count(60);
        assert!(!counters.is_conserved());
        counters.waiting = 1;
        assert!(counters.is_conserved());
        counters.drop(DeviceDropReason::Refused);
        assert!(!counters.is_conserved());
        counters.cut += 1;
        assert!(counters.is_conserved());
    }
}
