//! One connection to a server: how statements are sent over it, and how it ends.

use std::time::Duration;

use rehang_core::{Error, ErrorKind};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::connection::Step;
use crate::parameter::Parameter;

/// Parameters of a statement.
pub(crate) type Parameters<'a> = &'a [&'a dyn Parameter];

/// Statement with its parameters.
pub(crate) type BoundStatement<'a> = (String, Vec<&'a dyn Parameter>);

/// Longest wait for the end of a connection.
const FAREWELL: Duration = Duration::from_secs(1);

/// Connection to a server, or to a pooler before it. No statement has a name, and no setting outlasts its
/// transaction. A pooler may give our next transaction another session, and give this session to the
/// application, which would meet whatever we had left there.
pub(crate) struct Connection {
    runtime: Runtime,
    /// Client of the connection; gone only while the connection is dropped.
    client: Option<Client>,
    /// Task that moves the bytes, while something is asked.
    driver: Option<JoinHandle<()>>,
    /// Begin of each statement that is a transaction of its own; `None` inside of a transaction.
    alone: Option<String>,
}

impl Connection {
    pub(crate) fn open(config: &Config, tls: MakeRustlsConnect) -> Step<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Error::from(ErrorKind::Unavailable { service: "this machine".into(), detail: error.to_string() })
        })?;
        let (client, connection) = runtime.block_on(config.connect(tls))?;
        // The reason why a connection ended reaches whoever next asks something over it.
        let driver = runtime.spawn(async move { drop(connection.await) });
        Ok(Self { runtime, client: Some(client), driver: Some(driver), alone: None })
    }

    /// Makes each statement from here on a transaction of its own that begins with `begin`; with `None` it is
    /// part of a transaction again.
    pub(crate) fn each_alone(&mut self, begin: Option<String>) {
        self.alone = begin;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.as_ref().is_none_or(Client::is_closed)
    }

    pub(crate) fn query(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<Vec<Row>> {
        let typed_parameters = typed(parameters);
        self.ask(async |client| client.query_typed(sql, &typed_parameters).await)
    }

    pub(crate) fn query_opt(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<Option<Row>> {
        Ok(self.query(sql, parameters)?.into_iter().next())
    }

    pub(crate) fn query_one(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<Row> {
        let row = self.query_opt(sql, parameters)?;
        Ok(row.ok_or_else(|| Error::corrupt("an answer of the server", "it has no row"))?)
    }

    pub(crate) fn count(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<u64> {
        Ok(self.query_one(sql, parameters)?.try_get::<_, i64>(0)?.max(0) as u64)
    }

    pub(crate) fn execute(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<u64> {
        let typed_parameters = typed(parameters);
        self.ask(async |client| client.execute_typed(sql, &typed_parameters).await)
    }

    /// Runs statements without parameters, as they are.
    pub(crate) fn batch(&mut self, sql: &str) -> Step<()> {
        let Some(client) = &self.client else { return Err(gone()) };
        Ok(self.runtime.block_on(client.batch_execute(sql))?)
    }

    /// Sends statements at once, behind `before`, which gives no rows, and returns the rows of each. Where
    /// each statement is a transaction of its own, these are one transaction together, in one round trip.
    pub(crate) fn query_all(
        &mut self,
        before: &str,
        queries: &[(&str, Vec<&dyn Parameter>)],
    ) -> Step<Vec<Vec<Row>>> {
        let Some(client) = &self.client else { return Err(gone()) };
        let first: Vec<&str> =
            self.alone.as_deref().into_iter().chain((!before.is_empty()).then_some(before)).collect();
        let is_alone = self.alone.is_some();
        let ask =
            async |sql: &str, parameters: Parameters<'_>| client.query_typed(sql, &typed(parameters)).await;
        let say = async |sql: &str| if sql.is_empty() { Ok(()) } else { client.batch_execute(sql).await };
        // The three are sent in this order.
        let (begun, answers, committed) = self.runtime.block_on(futures_util::future::join3(
            say(&first.join("; ")),
            futures_util::future::join_all(queries.iter().map(|(sql, parameters)| ask(sql, parameters))),
            say(if is_alone { "COMMIT" } else { "" }),
        ));
        begun?;
        let answers = answers.into_iter().collect::<Result<_, _>>()?;
        committed?;
        Ok(answers)
    }

    /// Sends statements of an open transaction at once, and returns how many rows each has changed.
    pub(crate) fn execute_all(&mut self, statements: &[BoundStatement<'_>]) -> Step<Vec<u64>> {
        let Some(client) = &self.client else { return Err(gone()) };
        let ask =
            async |sql: &str, parameters: Parameters<'_>| client.execute_typed(sql, &typed(parameters)).await;
        let answers = self.runtime.block_on(futures_util::future::join_all(
            statements.iter().map(|(sql, parameters)| ask(sql, parameters)),
        ));
        let counts = answers.into_iter().collect::<Result<_, _>>()?;
        Ok(counts)
    }

    /// Asks one thing. Where a statement is a transaction of its own, it goes out at once with its begin and
    /// its commit. So none of its locks waits for a further message of ours. Where the begin or the statement
    /// fails, the server ignores the rest.
    fn ask<T>(&self, what: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>) -> Step<T> {
        let Some(client) = &self.client else { return Err(gone()) };
        let Some(begin) = &self.alone else { return Ok(self.runtime.block_on(what(client))?) };
        let all = futures_util::future::join3(
            client.batch_execute(begin),
            what(client),
            client.batch_execute("COMMIT"),
        );
        let (begun, answer, committed) = self.runtime.block_on(all);
        begun?;
        let answer = answer?;
        committed?;
        Ok(answer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The server hears that the connection is over, if it hears anything.
        drop(self.client.take());
        if let Some(driver) = self.driver.take() {
            drop(self.runtime.block_on(async { tokio::time::timeout(FAREWELL, driver).await }));
        }
    }
}

fn gone() -> crate::connection::StepError {
    crate::connection::StepError::Busy
}

fn typed(parameters: Parameters<'_>) -> Vec<(&(dyn ToSql + Sync), Type)> {
    parameters.iter().map(|parameter| (parameter.value(), parameter.kind())).collect()
}
