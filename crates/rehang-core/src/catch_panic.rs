//! Catching panics of other libraries, as values.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a library's code on data that may be damaged or hostile; `None` where that code panics. `work` must
/// stay on its thread.
///
/// The process's panic hook is wrapped once, so that it never hears of such a panic. Otherwise its message
/// would stand before the error, and a hook that ends the process would end it for a damaged file.
///
/// ```
/// assert_eq!(rehang_core::catch_panic(|| 2), Some(2));
/// assert_eq!(rehang_core::catch_panic(|| [1, 2][..].iter().map(|&one| one - 1).map(|none| 1 / none).sum::<i32>()), None);
/// ```
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let former_hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                former_hook(panic);
            }
        }));
    });
    let outer = IS_CAUGHT.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(outer);
    outcome.ok()
}
