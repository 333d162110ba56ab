//! The threads that models run on, in processes that fork, too.
//!
//! A process that was forked has its parent's memory and none of its threads: work that is handed to a pool
//! of the parent is waited for for ever. So every pool here is made anew in a child. The runtime has one more
//! pool, of its own, which cannot be made anew. It serves no run here, only what is computed when a model is
//! read.

use std::process;
use std::sync::{Arc, Mutex, OnceLock};

use rten::{ModelOptions, ThreadPool};

use crate::meter::lock;

/// Process that the runtime's own pool is of, and how many threads that pool chose to have.
static OF_RUNTIME: OnceLock<(u32, usize)> = OnceLock::new();
/// Pool of models whose configuration names no number of threads.
static SHARED: Threads = Threads::new();

/// Pool of threads that is made when it is first needed, and again in a process that was forked since.
pub(super) struct Threads(Mutex<Option<(u32, Arc<ThreadPool>)>>);

impl Threads {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The pool of this process: the model's own where the configuration names a number of threads, or else
    /// the one of all models.
    pub(super) fn pool(&self, threads: Option<usize>) -> Arc<ThreadPool> {
        match threads {
            Some(threads) => self.pool_of_process(process::id(), threads),
            None => SHARED.pool_of_process(process::id(), runtime_pool().1),
        }
    }

    fn pool_of_process(&self, process: u32, threads: usize) -> Arc<ThreadPool> {
        let mut owned_pool = lock(&self.0);
        if let Some((owner, pool)) = &*owned_pool
            && *owner == process
        {
            return Arc::clone(pool);
        }
        // Dropping the parent's pool would wake threads that are not here.
        std::mem::forget(owned_pool.take());
        let pool = Arc::new(ThreadPool::with_num_threads(threads));
        *owned_pool = Some((process, Arc::clone(&pool)));
        pool
    }
}

/// Options by which a model is read in this process.
///
/// The runtime computes the constant parts of a model beforehand, on its own pool. A process that was forked
/// from one that did so leaves that out, since it would wait for ever. Such models run slower, and give the
/// same vectors but for rounding.
pub(super) fn reading() -> ModelOptions {
    let mut options = ModelOptions::with_all_ops();
    options.enable_optimization(runtime_pool().0 == process::id());
    options
}

fn runtime_pool() -> (u32, usize) {
    *OF_RUNTIME.get_or_init(|| (process::id(), rten::thread_pool().run(rayon::current_num_threads)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_pool_and_a_forked_one_gets_its_own() {
        let threads = Threads::new();
        let parents = threads.pool_of_process(1, 2);
        assert!(Arc::ptr_eq(&parents, &threads.pool_of_process(1, 2)));
        let childs = threads.pool_of_process(2, 3);
        assert!(!Arc::ptr_eq(&parents, &childs) && Arc::ptr_eq(&childs, &threads.pool_of_process(2, 3)));
        assert_eq!(childs.run(rayon::current_num_threads), 3);
    }
}
