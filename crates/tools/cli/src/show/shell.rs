//! Words for a shell.

/// In quotes, if it needs to be.
pub(super) fn quote(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-,:=+@".contains(&byte));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_survive_the_shell() {
        assert_eq!(quote("/a'b"), "'/a'\\''b'");
        assert_eq!(quote("/a/b.sock"), "/a/b.sock");
    }
}
