//! Compares this crate with the kernel's connection tracking: the same packets, the same verdicts.
//!
//! A network namespace is a router with the kernel's connection tracking only (router.py). Random packets, many of them
//! slightly wrong, pass it and a tracker; the packets' states and each connection's state must agree. Needs root,
//! python3, ip, nft, and a kernel with nf_conntrack; without these it says so and passes.

#[path = "../tracker/frames.rs"]
#[allow(dead_code)]
mod frames;
mod router;
mod tcp;
mod translation;

/// Numbers that look random (Marsaglia's xorshift).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32 % bound
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }
}
