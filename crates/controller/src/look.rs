//! When something of a datapath is looked at: often while packets pass, and else when there is a reason.

/// One kind of list that the datapath is asked for, again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    due_ns: Option<u64>,
    /// The list is on its way.
    is_asked: bool,
}

impl Look {
    /// When it is to be asked for, while it is not on its way.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.due_ns.filter(|_| !self.is_asked)
    }

    /// There is a reason to look at `at_ns`, or before.
    pub(crate) fn want(&mut self, at_ns: u64) {
        self.due_ns = Some(self.due_ns.map_or(at_ns, |due_ns| due_ns.min(at_ns)));
    }

    /// Whether it is to be asked for now; then it is on its way.
    pub(crate) fn begin(&mut self, now_ns: u64) -> bool {
        let is_due = self.due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        if is_due {
            *self = Self { is_asked: true, due_ns: None };
        }
        is_due
    }

    /// All of it came. What there was a reason for meanwhile is due still.
    pub(crate) fn end(&mut self) {
        self.is_asked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_not_forgotten_while_a_list_is_on_its_way() {
        let mut look = Look::default();
        assert!(look.due_ns().is_none() && !look.begin(u64::MAX));
        look.want(50);
        look.want(70);
        assert_eq!((look.due_ns(), look.begin(49), look.begin(50)), (Some(50), false, true));
        assert!(!look.begin(50), "it is on its way");
        look.want(60);
        assert_eq!(look.due_ns(), None);
        look.end();
        assert_eq!((look.due_ns(), look.begin(60)), (Some(60), true));
        look.end();
        assert_eq!(look.due_ns(), None);
    }
}
