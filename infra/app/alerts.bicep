// Alert rules on the log, and whom they tell. Each rule's query gives one row for each thing that is wrong, by the name
// Subject: infra/queries/alerts. docs/azure-portal.md says what each means and what to do.

@description('Name of the Log Analytics workspace, which has the functions of queries.bicep.')
param workspaceName string

@description('Name of the action group.')
param actionGroupName string

@description('Region of the rules.')
param location string

@description('Tags of all resources.')
param tags object

@description('Who is told by e-mail; nobody where it is empty, and the alerts show in the portal only.')
param emails array

@description('Events behind which a consumer raises an alert.')
param lagLimit int

@description('Whether a consumer tells something every minute: in slices or as processes. Behind the Event Hubs trigger a quiet hub is quiet.')
param consumerAlwaysTells bool

// A line can be queried up to five minutes after it was written. So each query looks further back than to the last time it
// was asked (range and frequency): what came late is seen the next time. Two days hold the longest interval of a target.
var rules = [
  {
    name: 'tidemark-effects'
    title: 'Tidemark: a change was refused or fails'
    what: 'The platform refused a change, it was given up, or it has been failing for five minutes.'
    query: loadTextContent('../queries/alerts/effects.kql')
    severity: 2
    frequency: 'PT5M'
    window: 'PT15M'
    range: 'PT6H'
    enabled: true
  }
  {
    name: 'tidemark-silence'
    title: 'Tidemark: decisions are missing'
    what: 'The next decision of a target is seven minutes late, or there is none of any target.'
    query: loadTextContent('../queries/alerts/silence.kql')
    severity: 1
    frequency: 'PT5M'
    window: 'PT5M'
    range: 'P2D'
    enabled: true
  }
  {
    name: 'tidemark-collectors'
    title: 'Tidemark: a metric or capacity cannot be read'
    what: 'A metric or capacity could not be read several times, most of the time; nothing is scaled in meanwhile.'
    query: loadTextContent('../queries/alerts/collectors.kql')
    severity: 2
    frequency: 'PT5M'
    window: 'PT5M'
    range: 'P2D'
    enabled: true
  }
  {
    name: 'tidemark-functions'
    title: 'Tidemark: a function fails'
    what: 'A function failed three times within half an hour.'
    query: loadTextContent('../queries/alerts/functions.kql')
    severity: 2
    frequency: 'PT5M'
    window: 'PT5M'
    range: 'PT6H'
    enabled: true
  }
  {
    name: 'tidemark-poison'
    title: 'Tidemark: messages in a poison queue'
    what: 'The host gave up on messages; they stay until somebody has looked at them and deleted them.'
    query: loadTextContent('../queries/alerts/poison.kql')
    severity: 3
    frequency: 'PT10M'
    window: 'PT10M'
    range: 'PT6H'
    enabled: true
  }
  {
    name: 'tidemark-dead-letters'
    title: 'Tidemark: dead letters, or events lost to retention'
    what: 'The consumer put events aside that it could not write, or the hub removed events before they were read.'
    query: loadTextContent('../queries/alerts/dead-letters.kql')
    severity: 2
    frequency: 'PT10M'
    window: 'PT10M'
    range: 'PT15M'
    enabled: true
  }
  {
    name: 'tidemark-lag'
    title: 'Tidemark: a consumer is too far behind'
    what: 'For eight minutes its lag was never below the limit.'
    query: replace(loadTextContent('../queries/alerts/lag.kql'), 'let most_behind = 10000;', 'let most_behind = ${lagLimit};')
    severity: 2
    frequency: 'PT5M'
    window: 'PT5M'
    range: 'PT6H'
    enabled: true
  }
  {
    name: 'tidemark-consumer-stopped'
    title: 'Tidemark: a consumer stopped'
    what: 'No instance of a consumer that ran within the last six hours has told anything for ten minutes.'
    query: loadTextContent('../queries/alerts/consumer-stopped.kql')
    severity: 1
    frequency: 'PT5M'
    window: 'PT5M'
    range: 'PT6H'
    enabled: consumerAlwaysTells
  }
]

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' existing = {
  name: workspaceName
}

resource told 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: actionGroupName
  location: 'global'
  tags: tags
  properties: {
    groupShortName: 'tidemark'
    enabled: true
    emailReceivers: [for email in emails: {
      name: email
      emailAddress: email
      useCommonAlertSchema: true
    }]
  }
}

resource alerts 'Microsoft.Insights/scheduledQueryRules@2022-06-15' = [for rule in rules: {
  name: rule.name
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: rule.title
    description: rule.what
    severity: rule.severity
    enabled: rule.enabled
    evaluationFrequency: rule.frequency
    windowSize: rule.window
    overrideQueryTimeRange: rule.range
    scopes: [
      workspace.id
    ]
    criteria: {
      allOf: [
        {
          query: rule.query
          timeAggregation: 'Count'
          dimensions: [
            {
              name: 'Subject'
              operator: 'Include'
              values: [
                '*'
              ]
            }
          ]
          operator: 'GreaterThan'
          threshold: 0
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    autoMitigate: true
    // The tables come with the first lines, after the rules.
    skipQueryValidation: true
    actions: {
      actionGroups: [
        told.id
      ]
    }
  }
}]
