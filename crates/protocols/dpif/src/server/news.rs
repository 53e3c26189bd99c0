//! Notifications of ports since the switch process began, for clients that reconnect from another process.
//!
//! So these need not request everything again, as netlink makes them do (ENOBUFS), with a warning of OVS.

use crate::bounds::NEWS_MAX;

/// Notifications, oldest first.
#[derive(Debug, Default)]
pub(super) struct PortNews {
    told: Vec<Vec<u8>>,
    /// Whether the datapaths are those of another process, as clients know them.
    is_restored: bool,
    has_overflowed: bool,
}

impl PortNews {
    /// Notes that datapaths are those of another process.
    pub(super) fn restored(&mut self) {
        self.is_restored = true;
    }

    pub(super) fn note(&mut self, notification: &[u8]) {
        if self.told.len() < NEWS_MAX {
            self.told.push(notification.to_vec());
        } else {
            self.has_overflowed = true;
        }
    }

    /// All notifications; `None` if some are lost.
    pub(super) fn since_start(&self) -> Option<&[Vec<u8>]> {
        (self.is_restored && !self.has_overflowed).then_some(&self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_told_whole_or_not_at_all() {
        let mut news = PortNews::default();
        news.note(&[1]);
        assert_eq!(news.since_start(), None, "clients may know of ports that nobody told us of");
        news.restored();
        assert_eq!(news.since_start(), Some(&[vec![1]][..]));
        (1..NEWS_MAX).for_each(|_| news.note(&[2]));
        assert!(news.since_start().is_some_and(|told| told.len() == NEWS_MAX));
        news.note(&[3]);
        assert_eq!(news.since_start(), None);
    }
}
