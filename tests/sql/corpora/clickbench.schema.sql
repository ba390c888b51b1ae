-- The columns of ClickBench's table of page views that clickbench.sql asks for.
CREATE TABLE hits (WatchID BIGINT, Title VARCHAR, EventTime TIMESTAMP, EventDate DATE, CounterID INTEGER, ClientIP INTEGER,
                   RegionID INTEGER, UserID BIGINT, URL VARCHAR, Referer VARCHAR, IsRefresh SMALLINT,
                   ResolutionWidth SMALLINT, WindowClientWidth SMALLINT, WindowClientHeight SMALLINT,
                   MobilePhone SMALLINT, MobilePhoneModel VARCHAR, TraficSourceID SMALLINT, SearchEngineID SMALLINT,
                   SearchPhrase VARCHAR, AdvEngineID SMALLINT, IsLink SMALLINT, IsDownload SMALLINT,
                   DontCountHits SMALLINT, RefererHash BIGINT, URLHash BIGINT);
