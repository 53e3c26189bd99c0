//! proptest under its own name, with a macro `proptest!` that takes less time to compile.
//!
//! **Purpose.** proptest's macro instantiates the whole runner (cases, shrinking, saved failures) for each test. This one
//! runs all tests of a program by the same code: values and test are behind pointers. Everything else is proptest's.
//!
//! **Contract.** A test gets the same inputs as with proptest's macro, for the same seed. Values and strategies own all
//! they need.
//!
//! **Threading.** None.
//!
//! ```text
//!   proptest! { fn name(a in A, b: B) {..} } ──> property((A, any::<B>()), |(a, b)| ..) ──> run
//! ```
#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;

pub use real::*;

use real::strategy::{BoxedStrategy, Strategy};
use real::test_runner::{Config, TestCaseResult, TestRunner, contextualize_config};

/// As proptest's.
pub mod prelude {
    pub use crate::proptest;
    pub use real::prelude::*;
}

/// Values of one test, of any type.
trait AnyValues: fmt::Debug {
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: fmt::Debug + 'static> AnyValues for T {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The values of a case, with the names that a failure is told with.
struct Case {
    names: &'static str,
    values: Box<dyn AnyValues>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.names, self.values)
    }
}

/// A test and its values.
pub struct Property {
    strategy: BoxedStrategy<Case>,
    test: Box<dyn Fn(Case) -> TestCaseResult>,
}

/// The test `test` of all values of `strategy`, a tuple with these names.
pub fn property<S>(
    names: &'static str,
    strategy: S,
    test: impl Fn(S::Value) -> TestCaseResult + 'static,
) -> Property
where
    S: Strategy + 'static,
    S::Value: 'static,
{
    Property {
        strategy: strategy.prop_map(move |values| Case { names, values: Box::new(values) }).boxed(),
        test: Box::new(move |case| {
            let values = case.values.into_any().downcast().expect("made by the strategy");
            test(*values)
        }),
    }
}

/// Runs a test of this name and file; panics with the smallest values that fail.
pub fn run(config: &Config, test_name: &'static str, source_file: &'static str, property: &Property) {
    let config = contextualize_config(config.clone());
    let (test_name, source_file) = (Some(test_name), Some(source_file));
    let mut runner = TestRunner::new(Config { test_name, source_file, ..config });
    if let Err(error) = runner.run(&property.strategy, &*property.test) {
        panic!("{error}\n{runner}");
    }
}

/// Tests of properties, written as for proptest's macro.
#[macro_export]
macro_rules! proptest {
    (#![proptest_config($config:expr)] $($(#[$meta:meta])* fn $name:ident($($argument:tt)+) $body:block)*) => {
        $($(#[$meta])* fn $name() {
            let test = $crate::property_of!([] [] [$($argument)+,] $body);
            $crate::run(&$config, concat!(module_path!(), "::", stringify!($name)), file!(), &test);
        })*
    };
    ($($(#[$meta:meta])* fn $name:ident($($argument:tt)+) $body:block)*) => {
        $crate::proptest! {
            #![proptest_config($crate::test_runner::Config::default())]
            $($(#[$meta])* fn $name($($argument)+) $body)*
        }
    };
}

/// The [`Property`] of arguments and a body; the first brackets collect patterns, the second strategies.
#[doc(hidden)]
#[macro_export]
macro_rules! property_of {
    ([$($pattern:pat,)+] [$($strategy:expr,)+] [$(,)?] $body:block) => {
        $crate::property(stringify!(($($pattern),+)), ($($strategy,)+), |($($pattern,)+)| {
            $body
            Ok(())
        })
    };
    ([$($patterns:tt)*] [$($strategies:tt)*] [$name:ident: $type:ty, $($rest:tt)*] $body:block) => {
        $crate::property_of!(
            [$($patterns)* $name,] [$($strategies)* $crate::arbitrary::any::<$type>(),] [$($rest)*] $body
        )
    };
    ([$($patterns:tt)*] [$($strategies:tt)*] [$pattern:pat in $strategy:expr, $($rest:tt)*] $body:block) => {
        $crate::property_of!([$($patterns)* $pattern,] [$($strategies)* $strategy,] [$($rest)*] $body)
    };
}
