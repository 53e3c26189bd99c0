//! The bare algorithm of a single-copy switch: a ceiling to measure against, not a switch.
