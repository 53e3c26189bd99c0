use lasthop_verdict::{BATCH_PACKETS_MAX, Header};

/// The header images of one visit: those that came in, and behind them those that the module made.
#[derive(Clone, Copy)]
pub(crate) struct Images<'a> {
    pub(crate) fetched: &'a [Header; BATCH_PACKETS_MAX],
    pub(crate) made: &'a [Header],
}

impl<'a> Images<'a> {
    /// The image that an output names.
    ///
    /// # Panics
    /// If there is none: a module names images that it got from its verdicts.
    #[inline]
    pub(crate) fn get(self, image: u16) -> &'a Header {
        let index = usize::from(image);
        self.fetched.get(index).unwrap_or_else(|| &self.made[index - BATCH_PACKETS_MAX])
    }
}
