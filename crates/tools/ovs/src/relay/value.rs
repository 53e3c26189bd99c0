//! Values of columns as in RFC 7047, 5.1: a set with one element may be that element; maps are lists of pairs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A map of texts.
pub(super) type Texts = BTreeMap<String, String>;

/// The elements of a set.
pub(super) fn elements(value: &Value) -> Vec<Value> {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(kind), Value::Array(elements)]) if kind == "set" => elements.clone(),
        _ => vec![value.clone()],
    }
}

/// A set of texts with `more`.
pub(super) fn with(value: &Value, more: &[&str]) -> Value {
    let mut elements = elements(value);
    for text in more {
        if !elements.iter().any(|element| element == text) {
            elements.push(json!(text));
        }
    }
    json!(["set", elements])
}

/// A set of texts without `less`.
pub(super) fn without(value: &Value, less: &[&str]) -> Value {
    let mut elements = elements(value);
    elements.retain(|element| !element.as_str().is_some_and(|text| less.contains(&text)));
    json!(["set", elements])
}

/// The pairs of a map; none of a value of another type.
pub(super) fn texts(value: Option<&Value>) -> Texts {
    let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
    let pairs = value.filter(|value| value.get(0).is_some_and(|kind| kind == "map"));
    pairs.and_then(|map| map.get(1)?.as_array()).into_iter().flatten().filter_map(pair).collect()
}

/// A map of texts.
pub(super) fn map(texts: &Texts) -> Value {
    json!(["map", texts.iter().collect::<Vec<_>>()])
}

/// The difference of two maps as in `update2`: pairs that are in one of them, and new values (ovsdb-server(7), 4.1.14).
pub(super) fn difference(old: &Texts, new: &Texts) -> Texts {
    let mut difference: Texts =
        new.iter().filter(|(key, value)| old.get(*key) != Some(value)).map(owned).collect();
    difference.extend(old.iter().filter(|(key, _)| !new.contains_key(*key)).map(owned));
    difference
}

/// Changes a map by a difference.
pub(super) fn apply(texts: &mut Texts, difference: Texts) {
    for (key, value) in difference {
        if texts.get(&key) == Some(&value) {
            texts.remove(&key);
        } else {
            texts.insert(key, value);
        }
    }
}

fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> impl Strategy<Value = Texts> {
        prop::collection::btree_map("[abc]", "[xyz]{0,2}", 0..4)
    }

    proptest! {
        #[test]
        fn a_difference_leads_from_one_map_to_the_other(old in some(), new in some()) {
            let mut changed = old.clone();
            apply(&mut changed, texts(Some(&map(&difference(&old, &new)))));
            prop_assert_eq!(changed, new);
        }
    }

    #[test]
    fn sets_of_one_and_of_many_gain_and_lose_elements() {
        assert_eq!(with(&json!("a"), &["a", "b"]), json!(["set", ["a", "b"]]));
        assert_eq!(with(&json!(["set", []]), &["b"]), json!(["set", ["b"]]));
        assert_eq!(without(&json!(["set", ["a", "b"]]), &["b", "c"]), json!(["set", ["a"]]));
        assert_eq!(without(&json!("b"), &["b"]), json!(["set", []]));
        assert_eq!(texts(Some(&json!(["set", []]))), Texts::new());
    }
}
